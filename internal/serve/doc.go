// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package serve answers KubeDiag's contract for processors over HTTPS: POST /processor/<name> with a JSON object of
// strings, which returns a JSON object of strings (200), the reason why the fault is another one (422, text), or an
// error (text).
//
// Nobody is answered whom the API server does not know by a token (TokenReview) and does not allow to post to that path
// (SubjectAccessReview); who names a pod must also be allowed to get it. What the caller sends says which pod is looked
// at and nothing else: what is changed is found out anew from the Pod and from the kernel.
package serve
