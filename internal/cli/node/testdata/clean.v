✓ worker-7: nothing broken. Looked at 250 pods (specs of 248), 1500 subPath binds, 0 volumes and 1776 mounts in 12 ms. 1730 mounts below the kubelet's root: 1700 wanted, 14 inside volumes, 8 drivers' own, 2 the kubelet's own, 6 hidden, 0 left over, 0 unknown.
kubelet 1234, root "/var/lib/kubelet", mount namespace 4026531841.
