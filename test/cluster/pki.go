// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// authority is the certificate authority of one cluster. Its key is never written down.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	dir  string
}

// newAuthority makes an authority whose certificate is ca.crt in dir.
func newAuthority(dir string) (*authority, error) {
	a := &authority{dir: dir, cert: certificate("kubediag-test")}
	a.cert.IsCA, a.cert.BasicConstraintsValid = true, true
	a.cert.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make authority key: %w", err)
	}
	a.key = key
	return a, a.sign("ca", a.cert, key)
}

// serving writes a certificate for a server at these addresses.
func (a *authority) serving(name string, ips ...net.IP) error {
	t := certificate(name)
	t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	t.IPAddresses = append(ips, net.IPv4(127, 0, 0, 1))
	t.DNSNames = []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"}
	return a.issue(name, t)
}

// client writes a certificate for a client that is a member of group.
func (a *authority) client(name, group string) error {
	t := certificate(name)
	t.Subject.Organization = []string{group}
	t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	return a.issue(name, t)
}

// issue makes a key, and writes it and its certificate as <name>.key and <name>.crt.
func (a *authority) issue(name string, t *x509.Certificate) error {
	key, err := writeKey(a.dir, name)
	if err != nil {
		return err
	}
	return a.sign(name, t, key)
}

func (a *authority) sign(name string, t *x509.Certificate, key *ecdsa.PrivateKey) error {
	der, err := x509.CreateCertificate(rand.Reader, t, a.cert, key.Public(), a.key)
	if err != nil {
		return fmt.Errorf("sign certificate %q: %w", name, err)
	}
	return writePEM(filepath.Join(a.dir, name+".crt"), "CERTIFICATE", der)
}

// certificate has the common part of all certificates of a cluster: they outlive any test by far.
func certificate(name string) *x509.Certificate {
	serial, _ := rand.Int(rand.Reader, big.NewInt(1<<62)) // crypto/rand does not fail
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().AddDate(1, 0, 0),
		KeyUsage:     x509.KeyUsageDigitalSignature,
	}
}

// writeKeyPair writes <name>.key and <name>.pub, by which the API server signs and checks ServiceAccount tokens.
func writeKeyPair(dir, name string) error {
	key, err := writeKey(dir, name)
	if err != nil {
		return err
	}
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return fmt.Errorf("encode public key %q: %w", name, err)
	}
	return writePEM(filepath.Join(dir, name+".pub"), "PUBLIC KEY", der)
}

func writeKey(dir, name string) (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make key %q: %w", name, err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode key %q: %w", name, err)
	}
	return key, writePEM(filepath.Join(dir, name+".key"), "EC PRIVATE KEY", der)
}

func writePEM(path, kind string, der []byte) error {
	return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}

// user is a user whom the API server knows by a token.
type user struct{ name, group, token string }

// newUser makes a user with a token of its own.
func newUser(name, group string) user {
	return user{name: name, group: group, token: strings.ToLower(rand.Text())}
}

// writeTokens writes the API server's file of static tokens.
func writeTokens(path string, users ...user) error {
	var b strings.Builder
	for i, u := range users {
		fmt.Fprintf(&b, "%s,%s,%d,%q\n", u.token, u.name, i, u.group)
	}
	return os.WriteFile(path, []byte(b.String()), 0o600)
}
