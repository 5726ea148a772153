✗ worker-7: 3 faults in 3 places in what was looked at. 2 places could not be judged. 2 pods fail at their next start. 1 device cannot be detached. 0 of 3 can be healed safely.
  at next start: pod no \x1b[2J name, default/web

#  FAULT              HURTS       HEAL    POD OR DEVICE        VOLUME
1  MissingBindSource  next start  person  pod no \x1b[2J name
     its source does not exist
2  StaleSubPath       next start  person  default/web          configmap
     app: the file it is bound to was deleted or replaced
3  HeldDevice         detach      person  252:48               pvc-1
     the device is still mounted elsewhere

1. MissingBindSource (critical): The source of a mount does not exist
  hurts      next start
  pod        uid no \x1b[2J name (its name is not known)
  mount      /k/\xff
  heal       person
  plan       nothing: the missing file or directory has to be created, or the volume changed
  prevention if it is a hostPath, set type: DirectoryOrCreate in the pod with UID no \x1b[2J name, and the kubelet makes the directory; else take subPath out of the volumeMount of the pod with UID no \x1b[2J name: it then has the whole volume
  repair     none: a person must create the missing file or directory, start the daemon of the socket, or change the volume
  runbook    kubediag explain MissingBindSource

2. StaleSubPath (critical): A subPath is still bound to a file that was deleted or replaced
  hurts      next start
  pod        default/web, uid 5f0e5d0c-3a7c-4a53-9f0e-1b2f0f6f7a10
  container  app
  volume     configmap
  mount      /var/lib/kubelet/pods/5f0e/volume-subpaths/configmap/app/0
  why        the source was deleted and has no link left
             device 8:1, inode 7, link count 0
  heal       person
  plan       nothing by itself: the kubelet has to bind the current file
  prevention take subPath out of the volumeMount of volume "configmap" in container "app" of pod default/web: it then has the whole volume; or update the kubelet to 1.19 or later
  repair     unmount that one mount and bind the current file or directory in its place, if it exists; the container's next start is brought forward
  runbook    kubediag explain StaleSubPath

3. HeldDevice (critical): A device cannot be detached because something that the host does not show holds it
  hurts      detach
  volume     pvc-1
  device     252:48
  mount      /var/lib/kubelet/plugins/kubernetes.io/rbd/mounts/pvc-1
  holder     process 77 (chronyd)
  why        the kernel refuses to open device /dev/rbd3 (252:48) exclusively: it is busy
  heal       person
  plan       nothing by itself: what holds the device is in use, or no copy of a mount of the kubelet
  prevention none: no pod is known to have brought in the copy, or the kubelet has left the loop device
  repair     unmount every copy in the mount namespace that has it, without ending a process; then detach the device
  runbook    kubediag explain HeldDevice

Next:
  kubediag show 1                     # evidence, plan and commands of number 1
  kubediag explain MissingBindSource  # cause, proof, repair by hand, prevention

Looked at 1 pod (no specs), 2 subPath binds, 3 volumes and 40 mounts in 0.5 ms.
! Not judged: "/k/pods/u/volume-subpaths/v/c/0": the file system says \x1b
! Not judged: volume "v" of pod "u" at "/k/pods/u/volumes/x/v/mount": denied\x1b
! Names of pods are missing: runtime: deadline\u202e exceeded
! Not looked at: 1 process: it refuses\x1b: ask.
! Unknown whether this kubelet renews stale binds (kubelets from 1.19 do).
! Without the specs of pods (--pods), a source that is missing or was moved away is not seen, nor a hostPath on a disk that fails, or one that no container has yet: kubectl get pods -A -o json > pods.json; kubediag scan --pods=pods.json
! Note: no kubelet that serves \x1b was seen.
no kubelet process was used, root "/k \x1b", mount namespace 4026531841.
