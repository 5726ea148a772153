// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package share

// Several reports whether a number is reached by several namespaces together: by all of them, and half of it also without the
// namespace that has the most. So one namespace, together with a little of another, does not pay for all. counts has the number of
// each namespace; the number of no namespace is never left out.
func Several(counts map[string]int, needed int) bool {
	all, most := 0, 0
	for namespace, n := range counts {
		all += n
		if namespace != "" {
			most = max(most, n)
		}
	}
	return all >= needed && all-most >= (needed+1)/2
}
