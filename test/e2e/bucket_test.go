// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

//go:build release

package e2e

import (
	"encoding/xml"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// bucket serves a directory as the bucket "data" of S3, as far as a client needs it that reads. Signatures are not looked at.
type bucket struct{ dir string }

// object and listing are parts of the answer to ListObjects.
type object struct {
	Key          string
	LastModified string
	ETag         string
	Size         int64
	StorageClass string
}

type listing struct {
	XMLName        xml.Name `xml:"http://s3.amazonaws.com/doc/2006-03-01/ ListBucketResult"`
	Name           string
	Prefix         string
	Marker         string
	MaxKeys        int
	IsTruncated    bool
	Contents       []object
	CommonPrefixes []struct{ Prefix string }
}

func (b bucket) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	key, found := strings.CutPrefix(r.URL.Path, "/data")
	key = strings.TrimPrefix(key, "/")
	switch {
	case !found:
		http.Error(w, "no such bucket", http.StatusNotFound)
	case key == "":
		b.list(w, r.FormValue("prefix"))
	default:
		b.get(w, r, key)
	}
}

func (b bucket) get(w http.ResponseWriter, r *http.Request, key string) {
	name := filepath.Join(b.dir, filepath.FromSlash(key))
	st, err := os.Stat(name)
	if err != nil || st.IsDir() != strings.HasSuffix(key, "/") {
		http.Error(w, "no such key", http.StatusNotFound)
		return
	}
	w.Header().Set("ETag", `"1"`)
	if st.IsDir() {
		w.Header().Set("Content-Type", "application/x-directory")
		return
	}
	http.ServeFile(w, r, name)
}

// list lists the directory that a prefix ends with.
func (b bucket) list(w http.ResponseWriter, prefix string) {
	l := listing{Name: "data", Prefix: prefix, MaxKeys: 1000}
	dir, _ := filepath.Split(prefix)
	entries, _ := os.ReadDir(filepath.Join(b.dir, dir))
	for _, e := range entries {
		switch info, err := e.Info(); {
		case err != nil || !strings.HasPrefix(dir+e.Name(), prefix):
		case e.IsDir():
			l.CommonPrefixes = append(l.CommonPrefixes, struct{ Prefix string }{dir + e.Name() + "/"})
		default:
			l.Contents = append(l.Contents, object{dir + e.Name(), info.ModTime().UTC().Format(time.RFC3339), `"1"`, info.Size(), "STANDARD"})
		}
	}
	w.Header().Set("Content-Type", "application/xml")
	_ = xml.NewEncoder(w).Encode(l)
}
