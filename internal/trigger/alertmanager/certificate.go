// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package alertmanager

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"kubediag.org/kubediag/internal/bearer"
)

// ServiceName is the name of the Service of the receiver, and of the Secret with its certificate.
const ServiceName = "kubediag-alerts"

const (
	// leastLife is how long a stored certificate must still be valid. A younger one is made otherwise.
	leastLife = 365 * 24 * time.Hour
	// askAgain is the time between two calls of an API server that fails.
	askAgain = 2 * time.Second
)

// Secrets reads and writes the Secrets of a namespace.
type Secrets interface {
	Get(ctx context.Context, name string, o metav1.GetOptions) (*corev1.Secret, error)
	Update(ctx context.Context, s *corev1.Secret, o metav1.UpdateOptions) (*corev1.Secret, error)
}

// OwnCertificate is a self-signed certificate that the manager makes. A Secret keeps it, which config/components/alert-receiver
// brings without data: the manager may neither create a Secret nor read another one.
type OwnCertificate struct {
	// Secrets are those of Namespace.
	Secrets Secrets
	// Namespace is that of the Service whose names the certificate has.
	Namespace string
}

// obtain returns the certificate of the Secret, or makes one and stores it. Without that Secret, or without rights on it, the certificate
// is in memory only. The log says how senders check it.
func (o *OwnCertificate) obtain(ctx context.Context, log logr.Logger) (tls.Certificate, error) {
	var found tls.Certificate
	var kept error
	err := wait.PollUntilContextCancel(ctx, askAgain, true, func(ctx context.Context) (bool, error) {
		secret, err := o.Secrets.Get(ctx, ServiceName, metav1.GetOptions{})
		if err == nil {
			found, err = tls.X509KeyPair(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey])
			if err == nil && o.isUsable(found.Leaf) {
				return true, nil
			}
			if found, secret.Data, err = o.generate(); err == nil {
				_, err = o.Secrets.Update(ctx, secret, metav1.UpdateOptions{})
			}
		}
		switch {
		case apierrors.IsNotFound(err), apierrors.IsForbidden(err):
			kept = err
			found, _, err = o.generate()
			return true, err
		case err != nil:
			log.Info("Could not read the certificate of the alert receiver: asking again", "error", err.Error())
		}
		return err == nil, nil
	})
	if err != nil {
		return tls.Certificate{}, err
	}
	secret := o.Namespace + "/" + ServiceName
	if kept != nil {
		secret = "none, a restart makes another certificate: " + kept.Error()
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: found.Certificate[0]})
	log.Info("Receiving alerts by HTTPS with a self-signed certificate", "secret", secret,
		"caFile", "echo "+base64.StdEncoding.EncodeToString(text)+" | base64 -d >kubediag-ca.crt")
	return found, nil
}

// isUsable reports whether a certificate has all names, and is valid for another year.
func (o *OwnCertificate) isUsable(c *x509.Certificate) bool {
	for _, name := range o.serviceNames() {
		if c.VerifyHostname(name) != nil {
			return false
		}
	}
	return time.Until(c.NotAfter) > leastLife
}

// serviceNames are those of the Service within the cluster.
func (o *OwnCertificate) serviceNames() []string {
	name := ServiceName + "." + o.Namespace
	return []string{name + ".svc", name + ".svc.cluster.local", name, ServiceName}
}

// generate makes a certificate, and the data of the Secret that keeps it.
func (o *OwnCertificate) generate() (tls.Certificate, map[string][]byte, error) {
	certificate, key, err := bearer.SelfSigned(ServiceName, o.serviceNames()...)
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	made, err := tls.X509KeyPair(certificate, key)
	return made, map[string][]byte{corev1.TLSCertKey: certificate, corev1.TLSPrivateKeyKey: key}, err
}
