✗ worker-7: no kubelet is running, and nothing else is broken.

Next:
  systemctl status --no-pager kubelet  # why it is not running

Looked at 1 pod (no specs), 1 subPath bind, 0 volumes and 40 mounts in 9.0 ms.
! Without the specs of pods (--pods), a source that is missing or was moved away is not seen, nor a hostPath on a disk that fails, or one that no container has yet: kubectl get pods -A -o json > pods.json; kubediag scan --pods=pods.json
no kubelet process was used, root "/var/lib/kubelet", mount namespace 4026531841.
