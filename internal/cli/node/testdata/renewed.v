✓ worker-7: nothing broken. Looked at 3 pods (no specs), 9 subPath binds, 0 volumes and 40 mounts in 0.0 ms.
! 1 stale bind left out, which this kubelet renews by itself.
! Without pod specs (--pods) a source that was moved away is not seen, and one that is gone for good looks replaced.
kubelet 1, root "/var/lib/kubelet", mount namespace 1.
