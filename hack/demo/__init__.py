"""The demo: a ComputeDomain over several racks of simulated nodes becomes Ready, with every step shown.

`python -m hack.demo` starts a control plane of its own, or uses the cluster of a kubeconfig.
"""
