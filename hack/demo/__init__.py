"""The demo: a ComputeDomain over several racks of simulated nodes becomes Ready, with every step shown.

`python -m hack.demo` starts a sandbox, or a control plane of real components, or uses the cluster of a kubeconfig.
"""
