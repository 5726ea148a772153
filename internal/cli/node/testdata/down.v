✗ worker-7: no kubelet is running, and nothing else is broken.

Next:
  systemctl status --no-pager kubelet  # why it is not running

Looked at 1 pod (no specs), 1 subPath bind, 0 volumes and 40 mounts in 9.0 ms.
! Without pod specs (--pods) a source that was moved away is not seen, and one that is gone for good looks replaced.
no kubelet process was used, root "/var/lib/kubelet", mount namespace 4026531841.
