✓ worker-7: nothing broken. Looked at 250 pods (specs of 248), 1500 subPath binds, 0 volumes and 1776 mounts in 12 ms.
kubelet 1234, root "/var/lib/kubelet", mount namespace 4026531841.
