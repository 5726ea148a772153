✓ worker-7: nothing broken. Looked at 3 pods (specs of 3), 9 subPath binds, 0 volumes and 40 mounts in 0 ms.
! 1 stale bind left out, which this kubelet renews by itself.
kubelet 1, root "/var/lib/kubelet", mount namespace 1.
