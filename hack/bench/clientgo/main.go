// A no-op controller on client-go, measured beside the framework: a shared informer of pods and a work queue.
//
//	clientgo URL list|watch|latency COUNT
//
// It prints one line of JSON once COUNT objects or events have come, and then waits to be ended.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
)

// due is the annotation that holds when the server sent an event, in nanoseconds of the monotonic clock.
const due = "example.com/due"

func main() {
	url, mode := os.Args[1], os.Args[2]
	count, err := strconv.Atoi(os.Args[3])
	if err != nil {
		log.Fatal(err)
	}
	informer := informerOf(url)
	switch mode {
	case "list":
		list(informer, count)
	case "watch":
		watch(informer, count)
	case "latency":
		latency(informer, count)
	default:
		log.Fatalf("unknown mode %q", mode)
	}
	select {}
}

// informerOf makes what a generated informer factory makes, without the hundreds of packages that come with it.
func informerOf(url string) cache.SharedIndexInformer {
	scheme := k8sruntime.NewScheme()
	metav1.AddToGroupVersion(scheme, metav1.Unversioned)
	if err := corev1.AddToScheme(scheme); err != nil {
		log.Fatal(err)
	}
	client, err := rest.RESTClientFor(&rest.Config{
		Host:    url,
		APIPath: "/api",
		ContentConfig: rest.ContentConfig{
			GroupVersion:         &corev1.SchemeGroupVersion,
			NegotiatedSerializer: serializer.NewCodecFactory(scheme).WithoutConversion(),
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	selector := func(*metav1.ListOptions) {}
	pods := cache.NewFilteredListWatchFromClient(client, "pods", metav1.NamespaceAll, selector)
	return cache.NewSharedIndexInformer(pods, &corev1.Pod{}, 0, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
}

func list(informer cache.SharedIndexInformer, count int) {
	var heard atomic.Int64
	handler := cache.ResourceEventHandlerFuncs{AddFunc: func(any) { heard.Add(1) }}
	cpu, began := processCPU(), time.Now()
	start(informer, handler)
	if int(heard.Load()) != count {
		log.Fatalf("%d objects came instead of %d", heard.Load(), count)
	}
	used, took := processCPU()-cpu, time.Since(began)
	runtime.GC()
	debug.FreeOSMemory()
	report(map[string]float64{"cpu": used.Seconds(), "seconds": took.Seconds()})
}

func watch(informer cache.SharedIndexInformer, count int) {
	heard, done := 0, make(chan struct{})
	handler := cache.ResourceEventHandlerFuncs{UpdateFunc: func(any, any) {
		if heard++; heard == count {
			close(done)
		}
	}}
	start(informer, handler)
	runtime.GC()
	cpu := processCPU()
	report(map[string]float64{})
	<-done
	report(map[string]float64{"cpu": (processCPU() - cpu).Seconds()})
}

func latency(informer cache.SharedIndexInformer, count int) {
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[string]())
	handler := cache.ResourceEventHandlerFuncs{UpdateFunc: func(_, pod any) {
		key, err := cache.MetaNamespaceKeyFunc(pod)
		if err != nil {
			log.Fatal(err)
		}
		queue.Add(key)
	}}
	start(informer, handler)
	runtime.GC()
	report(map[string]float64{})
	delays := make([]float64, 0, count)
	for len(delays) < count {
		key, _ := queue.Get()
		pod, _, err := informer.GetIndexer().GetByKey(key)
		if err != nil {
			log.Fatal(err)
		}
		delays = append(delays, age(pod.(*corev1.Pod)))
		queue.Forget(key)
		queue.Done(key)
	}
	slices.Sort(delays)
	rank := func(share float64) float64 { return delays[int(share*float64(count)+0.999999)-1] }
	report(map[string]float64{"p50": rank(0.5), "p99": rank(0.99)})
}

func start(informer cache.SharedIndexInformer, handler cache.ResourceEventHandler) {
	registration, err := informer.AddEventHandler(handler)
	if err != nil {
		log.Fatal(err)
	}
	go informer.Run(context.Background().Done())
	for !registration.HasSynced() {
		time.Sleep(time.Millisecond)
	}
}

// age is how many seconds ago the event was sent that brought this state of a pod.
func age(pod *corev1.Pod) float64 {
	sent, err := strconv.ParseInt(pod.Annotations[due], 10, 64)
	if err != nil {
		log.Fatal(err)
	}
	return float64(clock(unix.CLOCK_MONOTONIC).Nanoseconds()-sent) / 1e9
}

func processCPU() time.Duration { return clock(unix.CLOCK_PROCESS_CPUTIME_ID) }

func clock(id int32) time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(id, &now); err != nil {
		log.Fatal(err)
	}
	return time.Duration(now.Nano())
}

func report(figures map[string]float64) {
	line, err := json.Marshal(figures)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(string(line))
}
