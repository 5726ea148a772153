! worker-7: nothing broken in what was looked at. Looked at 3 pods (no specs), 9 subPath binds, 0 volumes and 40 mounts in 0 ms.
! Not looked at: 77 processes, and what only they have mounted: user 65534 may not look into them: run it as root in the host's PID namespace (in a pod: hostPID: true).
! Not looked at: what the container runtime knows: it did not answer for 2.0 s.
! Without the specs of pods (--pods), a source that is missing or was moved away is not seen, nor a hostPath on a disk that fails, or one that no container has yet: kubectl get pods -A -o json > pods.json; kubediag scan --pods=pods.json
no kubelet process was used, root "/var/lib/kubelet", mount namespace 1.
