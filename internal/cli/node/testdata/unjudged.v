! worker-7: nothing broken in what could be judged. 1 place could not be judged. Looked at 3 pods (specs of 3), 9 subPath binds, 2 volumes and 40 mounts in 0 ms.
! Not judged: volume "pvc-1" of pod shop/web-0 at "/var/lib/kubelet/pods/u/volumes/kubernetes.io~csi/pvc-1/mount": access to it is denied: permission denied
kubelet 1234, root "/var/lib/kubelet", mount namespace 1.
