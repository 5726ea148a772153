// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package kubelog

// remark is a subject of a text that has no code.
type remark struct {
	phrases []string
	none    []string
	like    *pattern
	hint    string
}

var remarks = []remark{
	{
		phrases: []string{"shared mount", "slave mount"},
		like:    newPattern(`is mounted on [^ ]+ but it is not a (?:shared|slave|shared or slave) mount`),
		hint:    "the mount that has this path is private, so nothing that is mounted there reaches other mount namespaces",
	},
	{
		phrases: []string{"staged", "staging ", "valid mount point", "valid mountpoint"},
		like:    newPattern(`does not appear (?:to be )?staged|is not a valid mount ?point|(?:hasnt|has not) been staged|(?:isnt|is not) staged|staging (?:target )?path [^ ]+ is not mounted|not mounted at staging `),
		hint:    "the driver finds the volume not mounted at its staging path",
	},
	{
		phrases: []string{"mount.nfs", "mount error", "mount.lustre", "-t glusterfs"},
		none:    []string{"no such device", "sharecache fail"},
		like: newPattern(`mount\.nfs4?: (?:mounting .* failed, reason given by server|access denied by server|connection |no such |no route to host|failed to resolve|` +
			`(?:requested nfs version or transport )?protocol )|mount error(?:\([0-9]+\)| [0-9]+ = |: could not |: no mds server )|-t glusterfs .*mount failed\. (?:please )?check the log file|mount\.lustre: mount [^ ]+ at [^ ]+ failed: `),
		hint: "the server of the volume does not answer or refuses the mount: nothing is mounted, so the server, its address, the path or the rights are wrong",
	},
	{
		phrases: []string{"registered csi drivers"},
		like:    newPattern(`driver name [^ ]+ not found in the list of registered csi drivers`),
		hint:    "the kubelet does not know the driver of the volume: the driver's pod on this node does not run, or registers with another root directory of a kubelet",
	},
	{
		phrases: []string{"dial unix "},
		like:    newPattern(`dial unix [^ ]*/plugins/[^ ]+: connect: `),
		hint:    "the driver of the volume does not answer at its socket: its pod on this node does not run, or listens below another root directory of a kubelet",
	},
	{
		phrases: []string{"fuse: device not found", "/dev/fuse"},
		like:    newPattern(`fuse: device not found|failed to open /dev/fuse`),
		hint:    "this kernel or this container has no FUSE: load the module fuse on the node, and give the driver's container /dev/fuse",
	},
	{
		phrases: []string{"unknown filesystem type", "modprobe: fatal", "mount.nfs: no such device", "mount.nfs4: no such device"},
		like:    newPattern(`unknown filesystem type [a-z0-9.]+|modprobe: fatal: module [^ ]+ not found|mount\.nfs4?: no such device`),
		hint:    "the kernel of the node has no such file system or driver: its module is not installed, or is not loaded and the container may not load it",
	},
	{
		phrases: []string{"helper program"},
		like:    newPattern(`(?:bad option; for several filesystems|bad superblock on [^/ ][^ ]*:/).*need a /sbin/mount\.<type> helper program`),
		hint:    "the program that mounts this type is not installed where mount runs: nfs-common, nfs-utils or cifs-utils on the node or in the driver's image",
	},
	{
		phrases: []string{"superblock", "fsck ", "duplicate uuid", "mount(2) "},
		like: newPattern(`bad superblock on /dev/|cant read superblock on /|fsck found errors on device|run fsck manually|filesystem has duplicate uuid|` +
			`mount\(2\) system call failed: structure needs cleaning`),
		hint: "the kernel refuses the file system on the device, so nothing is mounted: the log of the kernel says why, such as damage, a feature that it lacks, " +
			"or the same UUID as that of a mounted copy",
	},
	{
		phrases: []string{"special device /dev/"},
		like:    newPattern(`special device /dev/[^ ]+ does not exist`),
		hint:    "the device is not on this node any more: it was detached, or the driver looks for it in the wrong place",
	},
	{
		phrases: []string{"multi-attach error", "waitforattach failed", "attachvolume.attach failed", "iscsiadm: "},
		like:    newPattern(`multi-attach error for volume|(?:waitforattach|attachvolume\.attach) failed|iscsiadm: could not log ?in to`),
		hint:    "the volume is not attached to this node: if another node has it, scan and holders find there what keeps it",
	},
	{
		phrases: []string{"device already mounted at", "sharecache fail"},
		like:    newPattern(`device already mounted at \[?/|is busy or already mounted or sharecache fail`),
		hint:    "another place of this node still has the volume mounted: scan says whose",
	},
	{
		phrases: []string{"configmap", "secret", "config key", "not registered"},
		like: newPattern(`(?:configmaps?|secrets?) [^ ]+ (?:not found|is forbidden)|object [^ ]+/[^ ]+ not registered|failed to sync (?:configmap|secret) cache|` +
			`references non-existent (?:config|secret) key`),
		hint: "the kubelet has not got the ConfigMap or Secret that the volume is made from, or it lacks a key that the pod asks for: nothing is mounted until it has",
	},
	{
		phrases: []string{"unable to attach or mount volumes"},
		like:    newPattern(`unable to attach or mount volumes: unmounted volumes=`),
		hint:    "the kubelet waits for these volumes and does not say why: the Event before this one does",
	},
	{
		phrases: []string{"input/output error", "i/o error", "structure needs cleaning", "host is down", "too many levels of symbolic links"},
		like:    newPattern(`/[^ ]*: (?:input/output error|i/o error|structure needs cleaning|host is down|too many levels of symbolic links)`),
		hint: "a file system answers with an error: probe asks that of a path whether it is alive; too many levels of symbolic links are a mount by autofs " +
			"that does not reach the container",
	},
	{
		phrases: []string{"read-only file system"}, none: []string{"generate"},
		like: newPattern(`/[^ ]*: read-only file system`),
		hint: "the mount is read-only: if the pod does not ask for that, the kernel may have stopped writes after an error, and scan finds it as VolumeIOError",
	},
	{
		phrases: mountTool,
		like:    newPattern(`move_mount\(\) failed|bad superblock on /proc/[^ ]+/fd/`),
		hint:    "mount of util-linux 2.41 refuses some binds of open files; the source need not be broken",
	},
}
