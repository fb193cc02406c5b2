"""gpu-mirage: Kubernetes controllers that make a cluster show a simulated GPU estate."""
