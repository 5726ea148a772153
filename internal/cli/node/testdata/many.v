✗ worker-7: 8 faults in 5 places. 2 pods are hurt now. 2 pods fail at their next start. 1 device cannot be detached. 1 directory of a pod is left. 3 of 5 can be healed safely.
  hurt now:      ml/trainer-1, ml/trainer-0
  at next start: shop/web-7d9f8b6c5-bbbbb, shop/web-7d9f8b6c5-x2x9k

#  FAULT               HURTS       HEAL    POD OR DEVICE                             VOLUME
1  HungMount           now         person  ml/trainer-1                              pvc-hung
     it does not answer; its daemon ceph-fuse[21087] is stopped
2  DisconnectedFUSE    now         driver  ml/trainer-0                              data
     PersistentVolume pvc-dead: the connection to its FUSE daemon is gone; cephfs.csi.ceph.com has mounted nothing in its place
3  StaleSubPath        next start  safe    shop/web ×2                               nginx-conf
     nginx, sidecar: the file it is bound to was deleted or replaced
4  HeldDevice          detach      safe    /dev/loop0 (7:0)                          pvc-held
     held by pod monitoring/node-exporter-x2x9k (node_exporter[21214]), which has a private copy of the host's mounts
5  OrphanedPodVolumes  cleanup     safe    pod 29da79e5-386c-4e0d-82c1-215f93ff955d
     the pod is gone and its directory is left

1. HungMount (critical): A mount does not answer
  hurts      now
  pod        ml/trainer-1, uid uid-of-trainer-1
  workload   StatefulSet trainer
  volume     pvc-hung
  mount      /var/lib/kubelet/pods/uid-of-trainer-1/volumes/kubernetes.io~csi/pvc/mount
  driver     cephfs.csi.ceph.com
  heal       person
  plan       nothing by itself: the daemon or the server must answer again
  prevention set the sysctls fs.fuse.default_request_timeout and fs.fuse.max_request_timeout of the node (Linux 6.15): the kernel then ends a connection that does not answer
  repair     none by itself: the daemon or the server must answer again; the FUSE connection is aborted on explicit request only
  runbook    kubediag explain HungMount

2. DisconnectedFUSE (critical): The daemon of a volume is gone, or its session was ended by the server
  hurts      now
  pod        ml/trainer-0, uid uid-of-trainer-0
  workload   StatefulSet trainer
  volume     data (PersistentVolume pvc-dead)
  mount      /var/lib/kubelet/pods/uid-of-trainer-0/volumes/kubernetes.io~csi/pvc/mount
  driver     cephfs.csi.ceph.com
  heal       driver
  plan       nothing yet: replace the mount once the driver has mounted the volume again; an eviction of the pod does that too
  prevention drain the node before cephfs.csi.ceph.com is updated, and give its container enough memory; or have it run its daemons outside its own pod
  repair     replace the dead mount with the one that the driver mounted again, on the host and in running containers; if there is none, evict the pod; unmount a dead mount of the node that hides a living one, or whose pod is going
  runbook    kubediag explain DisconnectedFUSE

3. StaleSubPath (critical): A subPath is still bound to a file that was deleted or replaced
  hurts      next start
  pod        shop/web-7d9f8b6c5-bbbbb, uid uid-of-web-7d9f8b6c5-bbbbb
  workload   ReplicaSet web-7d9f8b6c5
  container  nginx
  volume     nginx-conf
  mount      /var/lib/kubelet/pods/uid-of-web-7d9f8b6c5-bbbbb/volume-subpaths/nginx-conf/nginx/0
  why        the root of the mount is deleted: its link count is 0
  heal       safe
  plan       replace this one bind with the file that the subPath names now; the running container keeps what it has
  prevention take subPath out of the volumeMount of volume "nginx-conf" in container "nginx" of ReplicaSet shop/web-7d9f8b6c5: it then has the whole volume; or update the kubelet to 1.19 or later
  repair     unmount that one mount and bind the current file or directory in its place, if it exists; the container's next start is brought forward
  runbook    kubediag explain StaleSubPath

3. StaleSubPath (critical): A subPath is still bound to a file that was deleted or replaced
  hurts      next start
  pod        shop/web-7d9f8b6c5-bbbbb, uid uid-of-web-7d9f8b6c5-bbbbb
  workload   ReplicaSet web-7d9f8b6c5
  container  sidecar
  volume     nginx-conf
  mount      /var/lib/kubelet/pods/uid-of-web-7d9f8b6c5-bbbbb/volume-subpaths/nginx-conf/sidecar/0
  why        the root of the mount is deleted: its link count is 0
  heal       safe
  plan       replace this one bind with the file that the subPath names now; the running container keeps what it has
  prevention take subPath out of the volumeMount of volume "nginx-conf" in container "sidecar" of ReplicaSet shop/web-7d9f8b6c5: it then has the whole volume; or update the kubelet to 1.19 or later
  repair     unmount that one mount and bind the current file or directory in its place, if it exists; the container's next start is brought forward
  runbook    kubediag explain StaleSubPath

3. StaleSubPath (critical): A subPath is still bound to a file that was deleted or replaced
  hurts      next start
  pod        shop/web-7d9f8b6c5-x2x9k, uid uid-of-web-7d9f8b6c5-x2x9k
  workload   ReplicaSet web-7d9f8b6c5
  container  nginx
  volume     nginx-conf
  mount      /var/lib/kubelet/pods/uid-of-web-7d9f8b6c5-x2x9k/volume-subpaths/nginx-conf/nginx/0
  why        the root of the mount is deleted: its link count is 0
  heal       safe
  plan       replace this one bind with the file that the subPath names now; the running container keeps what it has
  prevention take subPath out of the volumeMount of volume "nginx-conf" in container "nginx" of ReplicaSet shop/web-7d9f8b6c5: it then has the whole volume; or update the kubelet to 1.19 or later
  repair     unmount that one mount and bind the current file or directory in its place, if it exists; the container's next start is brought forward
  runbook    kubediag explain StaleSubPath

3. StaleSubPath (critical): A subPath is still bound to a file that was deleted or replaced
  hurts      next start
  pod        shop/web-7d9f8b6c5-x2x9k, uid uid-of-web-7d9f8b6c5-x2x9k
  workload   ReplicaSet web-7d9f8b6c5
  container  sidecar
  volume     nginx-conf
  mount      /var/lib/kubelet/pods/uid-of-web-7d9f8b6c5-x2x9k/volume-subpaths/nginx-conf/sidecar/0
  why        the root of the mount is deleted: its link count is 0
  heal       safe
  plan       replace this one bind with the file that the subPath names now; the running container keeps what it has
  prevention take subPath out of the volumeMount of volume "nginx-conf" in container "sidecar" of ReplicaSet shop/web-7d9f8b6c5: it then has the whole volume; or update the kubelet to 1.19 or later
  repair     unmount that one mount and bind the current file or directory in its place, if it exists; the container's next start is brought forward
  runbook    kubediag explain StaleSubPath

4. HeldDevice (critical): A device cannot be detached because something that the host does not show holds it
  hurts      detach
  pod        monitoring/node-exporter-x2x9k, uid uid-of-node-exporter-x2x9k
  volume     pvc-held
  device     7:0
  mount      /host/var/lib/kubelet/plugins/kubernetes.io/csi/pv/pvc-held/globalmount
  holder     process 21214 (node_exporter)
  heal       safe
  plan       unmount this copy in the mount namespace that has it, and detach the device; no process ends
  prevention set mountPropagation: HostToContainer in the volumeMount of pod monitoring/node-exporter-x2x9k that brings in the directories of the node: an unmount of the node then reaches it
  repair     unmount every copy in the mount namespace that has it, without ending a process; then detach the device
  runbook    kubediag explain HeldDevice

5. OrphanedPodVolumes (warning): Volumes of a pod that is gone are left in the kubelet's directory
  hurts      cleanup
  pod        uid 29da79e5-386c-4e0d-82c1-215f93ff955d (its name is not known)
  heal       safe
  plan       remove the empty directories that are left, and nothing that may be data
  prevention drain the node before its kubelet is stopped for good or its runtime is reset, and remove a CSI driver only after the pods that use it
  repair     remove the empty directories, leaf first, once no mount namespace has a mount of them; anything that may be data stays
  runbook    kubediag explain OrphanedPodVolumes

Next:
  kubediag show 1             # evidence, plan and commands of number 1
  kubediag recover 3 4 5      # asks, then repairs without loss
  kill -CONT 21087            # number 1: lets the stopped daemon run again
  kubediag explain HungMount  # cause, proof, repair by hand, prevention

Looked at 10 pods (specs of 9), 7 subPath binds, 4 volumes and 62 mounts in 2.1 s.
kubelet 1234, root "/var/lib/kubelet", mount namespace 4026531841.
