// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package sys

import "golang.org/x/sys/unix"

// RemoveEmpty removes the entry called name in directory dir, if it is an empty
// directory or an empty regular file with no other name. EBUSY: something is
// mounted there in the caller's mount namespace; what is mounted there in
// others is detached (3.18). ENOTEMPTY: it is not empty, or of another kind.
// Between the look and the removal of a file somebody may write to it.
func RemoveEmpty(dir *FD, name string) error {
	var st unix.Stat_t
	if err := retryErr(func() error { return unix.Fstatat(dir.n, name, &st, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT) }); err != nil {
		return err
	}
	flags := 0
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		flags = unix.AT_REMOVEDIR
	case unix.S_IFREG:
		if st.Size != 0 || st.Nlink != 1 {
			return ENOTEMPTY
		}
	default:
		return ENOTEMPTY
	}
	return retryErr(func() error { return unix.Unlinkat(dir.n, name, flags) })
}
