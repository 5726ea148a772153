// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package bearer

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"time"
)

// certificateLife is how long a self-signed certificate is valid.
const certificateLife = 10 * 365 * 24 * time.Hour

// SelfSigned makes a certificate of a server and its key, both in PEM.
func SelfSigned(name string, dnsNames ...string) (certificate, key []byte, err error) {
	made, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("making key: %w", err)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, nil, fmt.Errorf("making serial number: %w", err)
	}
	began := time.Now().Add(-time.Hour) // clocks differ
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name}, DNSNames: dnsNames, NotBefore: began, NotAfter: began.Add(certificateLife),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, made.Public(), made)
	if err != nil {
		return nil, nil, fmt.Errorf("signing certificate: %w", err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(made)
	if err != nil {
		return nil, nil, fmt.Errorf("encoding key: %w", err)
	}
	block := func(kind string, bytes []byte) []byte {
		return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: bytes})
	}
	return block("CERTIFICATE", der), block("PRIVATE KEY", private), nil
}
