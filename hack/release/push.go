// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"os"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// push sends the images and the chart of a release to the registry, and their signatures if there is a key. The credentials are
// those of docker login. A tag is moved only after all that it names is there, so that a push that was cut off can be repeated.
func push(ctx context.Context, o options) error {
	if o.registry == "" {
		return errors.New("-registry is empty: name the registry and the path in it, such as registry.example.org/kubediag")
	}
	key, err := o.loadSigningKey()
	if err != nil {
		return err
	}
	with := []remote.Option{remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain)}
	for _, i := range images {
		if err := o.pushOne(i.name, o.registry+"/"+i.name+":"+o.version, key, with); err != nil {
			return err
		}
	}
	return o.pushOne("chart", o.registry+"/charts/kubediag:"+o.chartVersion(), key, with)
}

// pushOne sends one OCI layout of the release to its place.
func (o options) pushOne(layoutName, place string, key *ecdsa.PrivateKey, with []remote.Option) error {
	tag, err := name.NewTag(place, name.StrictValidation)
	if err != nil {
		return fmt.Errorf("-registry is %q: %w", o.registry, err)
	}
	at, entry, err := o.loadLayout(layoutName)
	if err != nil {
		return err
	}
	if entry.MediaType.IsIndex() {
		index, errIndex := at.ImageIndex()
		if errIndex == nil {
			index, errIndex = index.ImageIndex(entry.Digest)
		}
		if err = errIndex; err == nil {
			err = remote.WriteIndex(tag, index, with...)
		}
	} else {
		img, errImage := at.Image(entry.Digest)
		if err = errImage; err == nil {
			err = remote.Write(tag, img, with...)
		}
	}
	if err != nil {
		return fmt.Errorf("push %s: %w", tag, err)
	}
	fmt.Printf("pushed %s@%s\n", tag, entry.Digest)
	if key == nil {
		return nil
	}
	signature, err := signatureOf(tag, entry.Digest, key)
	if err != nil {
		return fmt.Errorf("sign %s: %w", tag, err)
	}
	beside := tag.Context().Tag(entry.Digest.Algorithm + "-" + entry.Digest.Hex + ".sig")
	if err := remote.Write(beside, signature, with...); err != nil {
		return fmt.Errorf("push signature %s: %w", beside, err)
	}
	fmt.Printf("signed %s@%s\n", tag.Context(), entry.Digest)
	return nil
}

// loadSigningKey reads the private key; nil: nothing is signed.
func (o options) loadSigningKey() (*ecdsa.PrivateKey, error) {
	if o.signingKey == "" {
		return nil, nil
	}
	text, err := os.ReadFile(o.signingKey)
	if err != nil {
		return nil, fmt.Errorf("read signing key: %w", err)
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, fmt.Errorf("read signing key %q: no PEM", o.signingKey)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("read signing key %q: %w", o.signingKey, err)
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("read signing key %q: it is no ECDSA key", o.signingKey)
	}
	return key, nil
}

// The layout of a signature, as cosign has it in doc/SIGNATURE_SPEC.md: an image beside the signed one, whose layer is the payload.
const (
	signedPayload   types.MediaType = "application/vnd.dev.cosign.simplesigning.v1+json"
	signatureOfBlob string          = "dev.cosignproject.cosign/signature"
)

// signatureOf signs the name and the digest of an image.
func signatureOf(tag name.Tag, digest v1.Hash, key *ecdsa.PrivateKey) (v1.Image, error) {
	payload, err := json.Marshal(map[string]any{
		"critical": map[string]any{
			"identity": map[string]string{"docker-reference": tag.Context().Name()},
			"image":    map[string]string{"docker-manifest-digest": digest.String()},
			"type":     "cosign container image signature",
		},
		"optional": nil,
	})
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(payload)
	signature, err := ecdsa.SignASN1(rand.Reader, key, sum[:])
	if err != nil {
		return nil, err
	}
	oci := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	return mutate.Append(oci, mutate.Addendum{
		Layer:       static.NewLayer(payload, signedPayload),
		Annotations: map[string]string{signatureOfBlob: base64.StdEncoding.EncodeToString(signature)},
	})
}
