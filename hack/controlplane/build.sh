#!/usr/bin/env bash
# Builds etcd, the Kubernetes control plane and KWOK from the pinned Go modules beside this file, once per set of pins,
# and prints the directory that holds them (fit for KUBEBUILDER_ASSETS). The only thing on stdout is that directory.
#
#   hack/controlplane/build.sh            build if needed, print the directory
#   hack/controlplane/build.sh --where    print the directory without building; exit 1 where it is not complete
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${GPU_MIRAGE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/gpu-mirage}
key=$(cd "$here" && cat build.sh */go.mod */go.sum kubernetes/*/main.go | sha256sum | cut -c1-16)
out=$cache/controlplane/$key
export CGO_ENABLED=0 GOFLAGS="${GOFLAGS:-} -trimpath"

log() { echo "controlplane: $*" >&2; }

if [[ -e $out/complete ]]; then echo "$out"; exit 0; fi
if [[ ${1:-} == --where ]]; then exit 1; fi
command -v go >/dev/null || { log "Go is needed to build the control plane and is not on the PATH"; exit 1; }

mkdir -p "$cache/controlplane"
exec 9>"$cache/controlplane/.lock"
flock 9
if [[ -e $out/complete ]]; then echo "$out"; exit 0; fi

staging=$out.building
rm -rf "$staging"; mkdir -p "$staging"

version_of() { (cd "$here/$1" && go list -m -f '{{.Version}}' "$2"); }

build_etcd() (
	cd "$here/etcd"
	log "etcd $(version_of etcd go.etcd.io/etcd/server/v3)"
	go build -ldflags '-s -w' -o "$staging/etcd" go.etcd.io/etcd/server/v3
)

build_kwok() (
	cd "$here/kwok"
	log "kwok $(version_of kwok sigs.k8s.io/kwok)"
	go build -ldflags '-s -w' -o "$staging/kwok" sigs.k8s.io/kwok/cmd/kwok
	# KWOK has no built-in behaviour: its module ships the stages that make nodes Ready and pods Running.
	local module
	module=$(go list -m -f '{{.Dir}}' sigs.k8s.io/kwok)
	mkdir -p "$staging/stages"
	install -m 0644 "$module"/kustomize/stage/node/fast/node-initialize.yaml \
		"$module"/kustomize/stage/node/heartbeat-with-lease/node-heartbeat-with-lease.yaml \
		"$module"/kustomize/stage/pod/fast/pod-{ready,complete,delete}.yaml "$staging/stages/"
)

build_kubernetes() (
	cd "$here/kubernetes"
	local version minor package=k8s.io/component-base/version
	version=$(version_of kubernetes k8s.io/kubernetes)
	minor=${version#v1.}; minor=${minor%%.*}
	log "Kubernetes $version (about ten minutes the first time)"
	# Without the version the server calls itself v0.0.0 and clients misjudge it.
	go build -o "$staging/" -ldflags "-s -w -X $package.gitVersion=$version -X $package.gitMajor=1 -X $package.gitMinor=$minor" ./...
)

build_etcd
build_kwok
build_kubernetes
touch "$staging/complete"
rm -rf "$out"
mv "$staging" "$out"
log "built into $out"
echo "$out"
