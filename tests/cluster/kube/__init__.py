"""A small Kubernetes on pretend hosts: a real control plane, and a stand-in kubelet that starts pods as processes."""
