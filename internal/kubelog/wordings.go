// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kubelog

import (
	"slices"
	"strings"

	"kubediag.org/kubediag/internal/fault"
)

var (
	enoent = []string{"no such file or directory"}
	// mounting also takes a container that cannot be configured because a path is missing.
	mounting = []string{"mount", "subpath", "rootfs", "createcontainerconfigerror", "generate spec"}
	// notMounting removes phrases with the word that make no mount: an unmount, and the paths of mounts.
	notMounting = strings.NewReplacer("unmount", "", "umount", "", "mountpoint", "", "mount point", "", "globalmount", "", "/mount", "")
	subPath     = []string{"subpath"}
	// ofVolume is in the paths of the kubelet's volumes.
	ofVolume = []string{"/volumes/kubernetes.io~"}
	// lookups say that the path was not found; if the mount itself fails, it was.
	lookups    = []string{" stat /", " lstat /", " open /", " access /", "special device"}
	deleted    = []string{"//deleted "}
	otherKinds = []string{"not a directory", "is a directory", "onto a file", "onto a directory"}
	// mountTool are the words of util-linux 2.41, whose bind mounts of the kubelet's descriptors fail for no fault of the
	// volume.
	mountTool = []string{"move_mount() failed", "bad superblock on /proc/"}
	// byServer are the words of a server, or of the program that mounts for it, about a path that is not on the node.
	byServer = []string{"reason given by server", "mount error(", "mount error 2 = ", "mount.nfs: no such", "mount.nfs4: no such", "dial unix "}
	busy     = []string{"resource busy", "target is busy", "device is busy", "dataset is busy", "already mounted or", "apparently in use by the system"}
	inMemory = []string{"kubernetes.io~secret", "kubernetes.io~configmap", "kubernetes.io~projected", "kubernetes.io~downward-api", "kubernetes.io~empty-dir"}
)

// Parts of patterns.
const (
	// volumePath is a path of a volume in a pod's directory, of a subPath's bind, or of a volume that is mounted for the
	// node, each with the paths below it.
	volumePath = `(?:/volumes/[a-z0-9.-]+~[^ ]+|/volume-subpaths/[^ ]+|/globalmount(?:/[^ ]*)?|/plugins/kubernetes\.io/[^ ]+/mounts/[^ ]+)`
	// ioErrors are the errors of a server or a disk that does not serve its mount, in the words of glibc, of musl and of Go.
	ioErrors = `(?:input/output error|(?:remote )?i/o error|host is (?:down|unreachable)|no route to host|network is (?:down|unreachable)|` +
		`connection (?:refused|timed out|reset by peer)|operation timed out|structure needs cleaning|bad message|no such device|` +
		`required key not available|key has (?:expired|been revoked)|key was rejected by service)`
)

var (
	// runtimePath is a path that a container runtime mounts on: below its root, wherever that is.
	runtimePath = newPattern(`/(?:containerd|docker|crio|kata-containers|containers/storage|io\.containerd\.[a-z0-9.-]+|overlay-containers)/|` +
		`/(?:overlay2?|overlayfs|aufs|btrfs|devicemapper|vfs|zfs)/[^ ]*[0-9a-f]{12}|/containers/[0-9a-f]{64}/|/sandboxes/[0-9a-f]{12}[0-9a-f]*/`)
	// busyVolume is a volume of the kubelet that is busy.
	busyVolume = newPattern(`(?:/volumes/[a-z0-9.-]+~[^ ]+|/globalmount):?[^/]{0,60}(?:resource busy|(?:target|device|dataset) is busy)`)
	// volumeError is an error of a volume's mount, right behind its path.
	volumeError = newPattern(volumePath + `[\])]?: ` + ioErrors + `|` + ioErrors + `: /[^ ]*` + volumePath)
	// readOnlyChange is a change below a volume's mount that the kubelet or a driver makes only if the volume is to be written.
	readOnlyChange = newPattern(`l?(?:chown|chmod) /[^ ]*` + volumePath + `: read-only file system`)
	// sourceExists is a directory that a runtime or the kubelet makes because a stat of it failed, and that is there.
	sourceExists = newPattern(`(?:mount source path|generate spec|containererror|failed to create dir).*mkdir /[^ ]+:? file exists|` +
		`(?:mkdir|directory)[^/]{0,20}/[^ ]*` + volumePath + `:? file exists|mkdir /[^ ]*/pvc-[0-9a-f-]{36}[^ ]*: file exists`)
	// sourceRefused is a directory that a runtime has to make, as a hostPath is missing, on a file system that nothing can be written to.
	sourceRefused = newPattern(`(?:mount source path|generate (?:container [^ ]+ )?spec|containererror).*mkdir /[^ ]+:? read-only file system`)
	// missingPath is a path that the kubelet has looked for: of a local volume, and of a hostPath of a container.
	missingPath = newPattern(`(?:^ |: )path /[^ ]+ does not exist|\berror: (?:l?stat|statfs) /[^ ]+: no such file or directory|` +
		`bind source path does not exist: /`)
	// blockError is an error of a device in the words of the block layer or a journal; noDisk names a floppy disk or a CD.
	blockError = newPattern(`journal on device |i/o error,? (?:on )?dev(?:ice)? |(?:medium|target) error, dev |` +
		`(?:error.*journal superblock for|flushing file data on|write due to i/o error on) `)
	noDisk = newPattern(`(?:dev|device|on) (?:sr|fd)[0-9]`)
	// fileSystemError is the message of a file system that has failed. An error that is only remembered is not among them.
	fileSystemError = newPattern(`(?:ext[234]-fs|f2fs-fs|xfs|btrfs)[a-z: ]{0,12}\((?:device )?[^)]{1,60}\).{0,160}(?:remounting filesystem read-?only|` +
		`forced readonly|journal has aborted|aborted journal|i/o error|io failure|shut ?down|shutting down|metadata corruption|corruption of in-memory data)|` +
		`(?:ext[234]-fs|btrfs:?) (?:error|critical) \(device |xfs \([^)]{1,60}\): please unmount the filesystem`)
	// lostClient are the messages of the kernel about a server that lets this client wait, or does not know it any more.
	lostClient = newPattern(`ceph: \[?[^]]{0,60}\]?:? ?mds[0-9]+ (?:reconnect denied|rejected session)|libceph: .{0,80}block?listed|` +
		`lustreerror: .*this client was evicted by `)
	waitsForServer = newPattern(`ceph: (?:\[[^]]{0,60}\]: )?mds[0-9]+ hung|lustre: .*connection to .* was lost; in progress operations|lustreerror: .*failed: rc = -(?:107|110)\b`)
	// requestFailed is a request to a network's block device that has failed: EIO, or the client is shut out.
	requestFailed = newPattern(`rbd: rbd[0-9]+: (?:read|write|discard|zeroout) [^ ]+ at [^ ]+ (?:\([^ ]+\) )?result -(?:5|108)\b`)
	hostPathKind  = newPattern(`hostpath type check failed: [^ ]+ is not a`)
	// runningCall is a call to a driver, or an operation of the kubelet, that waits for an earlier one.
	runningCall = newPattern(`operation (?:with|for|on) (?:(?:the|that|this|given|same) )*(?:volume|name|target).{0,160}` +
		`already (?:in progress|executing|exists|running|pending)|already an? operation (?:in progress|running|pending)|volume key .{1,200}already exists`)
	blockedTask = newPattern(`task .{1,60}:[0-9]+ blocked for more than [0-9]+ seconds`)
	// leftFiles is a volume's directory that is not empty after its unmount.
	leftFiles    = newPattern(`/volumes/[a-z0-9.-]+~[^ ]+\]?: directory not empty`)
	leftSubPath  = newPattern(`/volume-subpaths/[^ ]+: directory not empty|cleaning subpath mounts? .*(?:directory not empty|device or resource busy)`)
	mappingInUse = newPattern(`(?:mapped device|device [^ ]+) is still in use|: map in use|` +
		`logical volume [^ ]+ (?:is )?(?:in use|contains a filesystem in use|is used by another device)`)
	podDirIsMount = newPattern(`cannot delete directory [^ ]*/pods/[^ ]+: it is a mount ?point`)
	// busyInside is an emptyDir that the kubelet cannot remove, because something is mounted inside.
	busyInside = newPattern(`/kubernetes\.io~empty-dir/[^ ]+: device or resource busy`)
	// busyInPod is a volume of a pod that cannot be unmounted, because something has it open or is mounted inside.
	busyInPod = newPattern(`/pods/[^ ]+/volumes/[^ ]+[^/]{0,60}(?:resource busy|target is busy|device is busy)`)
	// subPathStays is a subPath's bind that the kubelet cannot unmount.
	subPathStays  = newPattern(`cleaning subpath mount .*unmount failed`)
	missingRecord = newPattern(`/pods/[^ ]+/vol_data\.json(?:: no such file or directory|\]: (?:eof|unexpected end of json input|invalid character))`)
	// nothingMounted is a volume that cannot be unmounted, because nothing is mounted there.
	nothingMounted = newPattern(`(?:unmountvolume|teardown|nodeunpublishvolume).*: (?:rpc error: code = [a-z]+ desc = )?volume (?:is )?not mounted|` +
		`(?:umount: (?:cant unmount )?|failed to unmount )[^ ]*/pods/[^ ]+/volumes/[^ ]+: (?:not mounted|no mount point specified|(?:umount failed: )?invalid argument)|` +
		`fusermount3?: entry for [^ ]*/pods/[^ ]+/volumes/[^ ]+ not found in /etc/mtab|` +
		`error getting block device for volume: .*lstat devtmpfs: no such file or directory`)
	// refusedUnmount is a driver that does not know the volume which it is to unmount.
	refusedUnmount = newPattern(`(?:unmountvolume|teardown|nodeunpublishvolume).*code = notfound `)
	// notKilled is a container that does not end after SIGKILL: most such wait in the kernel for a mount.
	notKilled = newPattern(`did not receive an exit event|waiting for container [^ ]+ to be killed|killcontainererror: rpc error: code = (?:4|deadlineexceeded) `)
	// mountedDevice is a device that a program leaves alone because a file system of it is mounted.
	mountedDevice = newPattern(`/dev/[^ ]+ (?:is mounted[.;]|contains a mounted filesystem)|device is held open by`)
	// mountLimit is a mount beyond fs.mount-max: the disk need not be full.
	mountLimit = newPattern(`(?:mount\(2\)[^.]{0,40}|ms_bind[^ ]*|move_mount\(\) failed|flags: 0x[0-9a-f]+): no space left on device`)
	// wholeVolume is a line of a mount table with a subPath bind that shows the root of its file system.
	wholeVolume = newPattern(`^ [0-9]+ [0-9]+ [0-9]+:[0-9]+ / [^ ]*/volume-subpaths/[^ ]+ `)
	// noSource is a mount of a runtime that has no source in the tree: a cgroup, proc.
	noSource       = newPattern(`error mounting [^/ ]+ to rootfs|mounting [^/ ]+ to rootfs`)
	skippedUnmount = newPattern(`unmount skipped because path does not exist: [^ ]*/volume-subpaths/`)
)

var wordings = []wording{
	{code: fault.HeldDevice, all: [][]string{busy, {
		"unmap", "unmount", "umount", "detach", "remove ioctl", "reload ioctl", "reset", "mkfs", "wipefs", "will not make a filesystem",
		"probing initialization", "/dev/", "mount directory", "globalmount", "/volumes/kubernetes.io~",
	}}, none: append([]string{"sharecache fail", "/sys/fs/cgroup", "/netns/", "root filesystem"}, inMemory...), unlike: runtimePath},
	{code: fault.HeldDevice, all: [][]string{busy}, none: inMemory, like: busyVolume},
	{code: fault.HeldMount, all: [][]string{busy}, none: []string{"unlinkat"}, like: busyVolume},
	{code: fault.HeldDevice, all: [][]string{{"unmap"}, {"exit status 16"}}}, // 16 is EBUSY
	{code: fault.HeldDevice, all: [][]string{{"cannot destroy ", "cannot export "}, {"dataset is busy", "pool is busy"}}},
	{code: fault.HeldDevice, all: [][]string{{"rbd image"}, {"still being used"}}},
	{code: fault.HeldDevice, all: [][]string{{"unable to remove open device"}}},
	{code: fault.HeldDevice, all: [][]string{{" in use"}}, like: mappingInUse},
	{code: fault.HeldDevice, all: [][]string{{"mounted", "held open"}}, like: mountedDevice},
	{code: fault.HeldDevice, all: [][]string{{"find loopback device which takes file descriptor lock"}}},

	{code: fault.DisconnectedFUSE, all: [][]string{{
		"transport endpoint is not connected", "socket not connected", "software caused connection abort",
		"cannot send after transport endpoint shutdown", "cannot send after socket shutdown",
	}}, none: []string{" tcp ", " tcp4 ", " tcp6 ", " udp ", "socketexception", "getpeername", "shutdown:", "recv:", "send:"}},
	{code: fault.DisconnectedFUSE, all: [][]string{{"special device /"}, {" does not exist"}}, none: []string{"special device /dev/"}},
	{code: fault.DisconnectedFUSE, all: [][]string{{"file exists"}}, none: inMemory, like: sourceExists},
	{code: fault.VolumeIOError, all: [][]string{{"file exists"}}, none: inMemory, like: sourceExists},
	{code: fault.VolumeIOError, all: [][]string{{"/volumes/", "/volume-subpaths/", "/globalmount", "/plugins/"}}, like: volumeError},
	{code: fault.VolumeIOError, all: [][]string{{"read-only file system"}}, none: inMemory, like: readOnlyChange},
	{code: fault.VolumeIOError, all: [][]string{{"error", "aborting"}}, like: blockError, unlike: noDisk},
	{code: fault.VolumeIOError, all: [][]string{{"-fs", "xfs", "btrfs"}}, like: fileSystemError},
	{code: fault.VolumeIOError, all: [][]string{{"rbd: rbd"}, {" result -"}}, like: requestFailed},
	{code: fault.VolumeIOError, all: [][]string{{"failed to create subpath directory"}}},
	{code: fault.DisconnectedFUSE, all: [][]string{{"failed to create subpath directory"}}},
	{code: fault.StaleFileHandle, all: [][]string{{"ceph: ", "lustreerror: "}}, like: lostClient},
	{code: fault.HungMount, all: [][]string{{"ceph: ", "lustre: ", "lustreerror: "}}, like: waitsForServer},
	{code: fault.StaleFileHandle, all: [][]string{{"stale file handle", "stale nfs file handle"}}},
	{code: fault.HungMount, all: [][]string{{"nfs: server "}, {"not responding"}}},
	{code: fault.HungMount, all: [][]string{{"cifs: vfs: "}, {"has not responded in "}}},
	{code: fault.HungMount, all: [][]string{{"operation"}, {"volume", "that name"}, {"already "}}, like: runningCall},
	{code: fault.HungMount, all: [][]string{{"volume key "}}, like: runningCall},
	{code: fault.HungMount, all: [][]string{{"status: unmountunderprogress", "status: mountunderprogress"}}},
	{code: fault.HungMount, all: [][]string{{" blocked for more than "}}, like: blockedTask},
	{code: fault.HungMount, all: [][]string{{"container"}, {"kill"}}, like: notKilled},
	{code: fault.StuckTermination, all: [][]string{{"container"}, {"kill"}}, like: notKilled},
	{code: fault.StuckTermination, all: [][]string{{"mount", "block device"}, {"not mounted", "no mount point", "invalid argument", "lstat devtmpfs", "not found in /etc/mtab"}}, like: nothingMounted},
	{code: fault.StuckTermination, all: [][]string{{"code = notfound"}}, like: refusedUnmount},
	{code: fault.HungMount, all: [][]string{{"deadlineexceeded", "deadline exceeded"}, {
		"mountvolume", "mountdevice", "unmountvolume", "unmountdevice", "teardown", "nodestagevolume", "nodeunstagevolume",
		"nodepublishvolume", "nodeunpublishvolume",
	}}},
	{code: fault.OrphanedPodVolumes, all: [][]string{{"vol_data.json"}}, like: missingRecord},
	{code: fault.StuckTermination, all: [][]string{{"vol_data.json"}, {"unmount", "teardown"}}, like: missingRecord},
	{code: fault.StuckTermination, all: [][]string{{"kubernetes.io~empty-dir"}, busy}, like: busyInside},
	{code: fault.StuckTermination, all: [][]string{{"unmountvolume", "teardown", "nodeunpublishvolume"}, busy}, like: busyInPod},
	{code: fault.StuckTermination, all: [][]string{{"cleaning subpath"}, {"unmount failed"}}, like: subPathStays},
	{code: fault.HeldMount, all: [][]string{{"cleaning subpath"}, {"unmount failed"}, busy}, like: subPathStays},
	{code: fault.OrphanedPodVolumes, all: [][]string{{"could not construct volume information"}, {"is not mounted"}}},
	{code: fault.OrphanedPodVolumes, all: [][]string{{"failed to remove orphaned pod"}}},
	{code: fault.OrphanedPodVolumes, all: [][]string{{"orphaned pod "}, {" found, but "}}},
	{code: fault.OrphanedPodVolumes, all: [][]string{{"cannot delete directory "}}, like: podDirIsMount},
	{code: fault.OrphanedPodVolumes, all: [][]string{{"directory not empty"}}, none: inMemory, like: leftFiles},
	{code: fault.StuckTermination, all: [][]string{{"directory not empty"}}, none: inMemory, like: leftFiles},
	{code: fault.DeletedVolumeSource, all: [][]string{{"directory not empty"}}, none: inMemory, like: leftFiles},
	{code: fault.DeletedVolumeSource, all: [][]string{{"mountpoint is not empty", "nonempty mount option"}}},

	{code: fault.LeftoverStaging, all: [][]string{{"cannot detach volume because it is still mounted"}}},
	{code: fault.LeftoverStaging, all: [][]string{{"is still mounted by other references"}}},
	{code: fault.StackedMounts, all: [][]string{{"no space left on device"}}, like: mountLimit},

	{code: fault.SourceTypeMismatch, mounts: true, all: [][]string{otherKinds}},
	{code: fault.SourceTypeMismatch, all: [][]string{{"hostpath type check failed"}}, like: hostPathKind},
	{code: fault.MissingBindSource, all: [][]string{{"hostpath type check failed"}}, like: hostPathKind},
	{code: fault.StaleSubPath, all: [][]string{{"prepare subpath"}}, none: mountTool},
	{code: fault.StaleSubPath, all: [][]string{subPath, deleted}, none: otherKinds},
	{code: fault.StaleSubPath, all: [][]string{subPath, enoent}, none: slices.Concat(otherKinds, lookups, mountTool, byServer)},
	{code: fault.StaleSubPath, mounts: true, all: [][]string{enoent}, none: slices.Concat(otherKinds, lookups, ofVolume, mountTool, byServer), unlike: noSource},
	{code: fault.StaleSubPath, all: [][]string{subPath, {"path does not exist"}}, like: skippedUnmount},
	{code: fault.StaleSubPath, all: [][]string{subPath, {"directory not empty", "resource busy"}}, like: leftSubPath},
	{code: fault.StaleSubPath, all: [][]string{subPath, {"file exists"}}, none: inMemory, like: sourceExists},
	{code: fault.WrongSubPath, all: [][]string{subPath}, like: wholeVolume},
	{code: fault.DeletedVolumeSource, all: [][]string{ofVolume, deleted}, none: slices.Concat(otherKinds, subPath)},
	{code: fault.DeletedVolumeSource, mounts: true, all: [][]string{ofVolume, enoent}, none: slices.Concat(otherKinds, subPath, lookups, mountTool, byServer)},
	{code: fault.MissingBindSource, mounts: true, all: [][]string{enoent, lookups}, none: append([]string{"vol_data.json"}, slices.Concat(otherKinds, deleted)...)},
	{code: fault.MissingBindSource, mounts: true, all: [][]string{enoent}, none: append([]string{"vol_data.json"}, slices.Concat(otherKinds, deleted, subPath, mountTool, byServer)...), unlike: noSource},
	{code: fault.MissingBindSource, all: [][]string{{"read-only file system"}}, like: sourceRefused},
	{code: fault.MissingBindSource, all: [][]string{{"special device /"}, {" does not exist"}}, none: []string{"special device /dev/"}},
	{code: fault.MissingBindSource, all: [][]string{{" does not exist", "no such file or directory"}}, like: missingPath, none: []string{": path /dev/"}},
}
