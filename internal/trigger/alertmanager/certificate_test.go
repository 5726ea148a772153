// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package alertmanager

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// secrets holds one, or fails as often as it has errors.
type secrets struct {
	data    map[string][]byte
	errs    []error
	updated int
}

func (s *secrets) Get(_ context.Context, name string, _ metav1.GetOptions) (*corev1.Secret, error) {
	if len(s.errs) > 0 {
		err := s.errs[0]
		s.errs = s.errs[1:]
		return nil, err
	}
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: s.data}, nil
}

func (s *secrets) Update(_ context.Context, secret *corev1.Secret, _ metav1.UpdateOptions) (*corev1.Secret, error) {
	s.updated++
	s.data = secret.Data
	return secret, nil
}

func own(s *secrets) *OwnCertificate { return &OwnCertificate{Secrets: s, Namespace: "kubediag"} }

// The certificate is made once and kept. Senders that have it as their authority trust the receiver by the name of its Service.
func TestOwnCertificate(t *testing.T) {
	t.Parallel()
	kept := &secrets{}
	r, got := newReceiver(t, only{}, "t")
	r.Own = own(kept)
	address := listen(t, r)
	ask := func(authority []byte, name string) (int, error) {
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(authority)
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, ServerName: name, MinVersion: tls.VersionTLS12}}}
		defer client.CloseIdleConnections()
		return post(t.Context(), client, "https://"+address, token)
	}
	if code, err := post(t.Context(), http.DefaultClient, "http://"+address, token); code != http.StatusBadRequest {
		t.Errorf("plain HTTP: status %d, %v", code, err)
	}
	first := kept.data[corev1.TLSCertKey]
	for _, name := range []string{"kubediag-alerts", "kubediag-alerts.kubediag", "kubediag-alerts.kubediag.svc", "kubediag-alerts.kubediag.svc.cluster.local"} {
		if code, err := ask(first, name); code != 200 {
			t.Errorf("%s: status %d, %v", name, code, err)
		}
	}
	if _, err := ask(first, "elsewhere.kubediag.svc"); err == nil {
		t.Error("the certificate is good for any name")
	}
	if len(got.causes) != 4 {
		t.Errorf("%d causes", len(got.causes))
	}
	if _, err := own(kept).obtain(t.Context(), logr.Discard()); err != nil || kept.updated != 1 || !bytes.Equal(first, kept.data[corev1.TLSCertKey]) {
		t.Errorf("after a restart: %v, %d updates", err, kept.updated)
	}
}

// A certificate that cannot be used is replaced; an API server that fails is asked again; without the Secret the certificate is in memory.
func TestStoredCertificate(t *testing.T) {
	t.Parallel()
	of := func(namespace string) map[string][]byte {
		_, data, err := (&OwnCertificate{Namespace: namespace}).generate()
		must(t, err)
		return data
	}
	resource := schema.GroupResource{Resource: "secrets"}
	for name, tc := range map[string]struct {
		kept    secrets
		updated int
		secret  string // in the log
	}{
		"good":                 {secrets{data: of("kubediag")}, 0, `"kubediag/kubediag-alerts"`},
		"empty":                {secrets{}, 1, `"kubediag/kubediag-alerts"`},
		"damaged":              {secrets{data: map[string][]byte{corev1.TLSCertKey: []byte("x"), corev1.TLSPrivateKeyKey: []byte("y")}}, 1, `"kubediag/kubediag-alerts"`},
		"of another namespace": {secrets{data: of("elsewhere")}, 1, `"kubediag/kubediag-alerts"`},
		"server fails once":    {secrets{data: of("kubediag"), errs: []error{errors.New("down")}}, 0, `"kubediag/kubediag-alerts"`},
		"no Secret":            {secrets{errs: []error{apierrors.NewNotFound(resource, ServiceName)}}, 0, "a restart makes another certificate"},
		"no right on Secrets":  {secrets{errs: []error{apierrors.NewForbidden(resource, ServiceName, errors.New("no"))}}, 0, "a restart makes another certificate"},
		"changed by another":   {secrets{errs: []error{apierrors.NewConflict(resource, ServiceName, errors.New("old"))}}, 1, `"kubediag/kubediag-alerts"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var log strings.Builder
			o := own(&tc.kept)
			found, err := o.obtain(t.Context(), funcr.New(func(_, args string) { log.WriteString(args + "\n") }, funcr.Options{}))
			if err != nil || !o.isUsable(found.Leaf) || tc.kept.updated != tc.updated {
				t.Errorf("%v, %d updates", err, tc.kept.updated)
			}
			if !strings.Contains(log.String(), tc.secret) || !strings.Contains(log.String(), "| base64 -d >kubediag-ca.crt") {
				t.Errorf("log = %s", &log)
			}
		})
	}
}
