// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package apitest gives tests a real API server with kubediag's CustomResourceDefinitions in it: kube-apiserver 1.37.2,
// or the version in KUBEDIAG_API_SERVER, or the same with the custom-resource server of 1.18.19 behind it. There are no nodes, no controllers and no kubelets;
// a test makes the objects that these would make.
//
// A test binary starts its servers when the first test asks for them. Its TestMain calls Main, which stops them.
package apitest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	v1 "kubediag.org/kubediag/api/v1"
	"kubediag.org/kubediag/internal/linux/kerneltest"
)

// startTimeout bounds the start of a server. It is long because it may have to be built first.
const startTimeout = 20 * time.Minute

// Env is an API server with kubediag's CustomResourceDefinitions. Tests of one binary share it.
type Env struct {
	// Config is for a client that may do everything. Copy it before changing it.
	Config *rest.Config
	// Client reads and writes without a cache.
	Client client.Client
	// Etcd is the URL of the server's etcd, which asks for no credentials.
	Etcd string
	// Rules reports whether the server evaluates CEL rules of CustomResourceDefinitions, as Kubernetes does from 1.25 on.
	Rules bool
}

// NeedRules skips a test of CEL rules of CustomResourceDefinitions where the server evaluates none.
func (e *Env) NeedRules(t testing.TB) {
	t.Helper()
	if !e.Rules {
		t.Skip("the API server evaluates no CEL rules of CustomResourceDefinitions, which takes Kubernetes 1.25")
	}
}

// NeedPolicies skips a test of ValidatingAdmissionPolicies where the server has none.
func NeedPolicies(t testing.TB) {
	t.Helper()
	if !HasPolicies() {
		t.Skip("the API server has no ValidatingAdmissionPolicies, which takes Kubernetes 1.30")
	}
}

// Start returns the API server 1.37.2, or that of the version in VersionVar.
func Start(t testing.TB) *Env {
	t.Helper()
	env, err := current()
	if err != nil {
		t.Fatalf("starting API server: %v", err)
	}
	return env
}

// StartOld returns an API server that treats kubediag's kinds as 1.18.19 does and everything else as 1.37.2 does.
func StartOld(t testing.TB) *Env {
	t.Helper()
	env, err := old()
	if err != nil {
		t.Fatalf("starting API server 1.18: %v", err)
	}
	return env
}

var (
	current = sync.OnceValues(func() (*Env, error) {
		ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
		defer cancel()
		config, err := startServer(ctx)
		if err != nil {
			return nil, err
		}
		env, err := newEnv(ctx, config)
		if err != nil {
			return nil, err
		}
		env.Rules = Since("1.25.0")
		return env, nil
	})
	old = sync.OnceValues(func() (*Env, error) {
		env, err := current()
		if err != nil {
			return nil, err
		}
		ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
		defer cancel()
		config, err := startOldServer(ctx)
		if err != nil {
			return nil, err
		}
		if config, err = join(env.Config, config); err != nil {
			return nil, err
		}
		return newEnv(ctx, config)
	})
)

func newEnv(ctx context.Context, config *rest.Config) (*Env, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(v1.AddToScheme(scheme), corev1.AddToScheme(scheme), coordinationv1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	c, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, err
	}
	env := &Env{Config: config, Client: c, Etcd: running.Etcd()}
	return env, env.installCRDs(ctx)
}

// installCRDs creates what is in config/crd and waits until it is served.
func (e *Env) installCRDs(ctx context.Context) error {
	root, err := moduleRoot()
	if err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(root, "config", "crd", v1.Group+"_*.yaml"))
	if err != nil || len(files) == 0 {
		return fmt.Errorf("finding CustomResourceDefinitions in %q: %w", root, errors.Join(err, os.ErrNotExist))
	}
	for _, file := range files {
		if err := e.installCRD(ctx, file); err != nil {
			return fmt.Errorf("installing %q: %w", filepath.Base(file), err)
		}
	}
	return nil
}

func (e *Env) installCRD(ctx context.Context, file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	crd := &unstructured.Unstructured{}
	if err := yaml.Unmarshal(text, &crd.Object); err != nil {
		return err
	}
	if err := e.Client.Create(ctx, crd); err != nil {
		return err
	}
	kind, _, err := unstructured.NestedString(crd.Object, "spec", "names", "kind")
	if err != nil {
		return err
	}
	// The handler of the kind and the list of kinds can lag behind the CustomResourceDefinition that says it is
	// established.
	return poll(ctx, func() error {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(v1.GroupVersion.WithKind(kind + "List"))
		return e.Client.List(ctx, list)
	})
}

// Without takes a CustomResourceDefinition away, and installs it again when the test has ended. The name is that of its resource.
// No other test may run meanwhile.
func (e *Env) Without(t testing.TB, resource string) {
	t.Helper()
	crd := &unstructured.Unstructured{}
	crd.SetAPIVersion("apiextensions.k8s.io/v1")
	crd.SetKind("CustomResourceDefinition")
	crd.SetName(resource + "." + v1.Group)
	must(t, e.Client.Delete(t.Context(), crd))
	Eventually(t, func() error {
		if err := e.Client.Get(t.Context(), client.ObjectKeyFromObject(crd), crd); !apierrors.IsNotFound(err) {
			return fmt.Errorf("it is still there: %w", err)
		}
		return nil
	})
	t.Cleanup(func() {
		root, err := moduleRoot()
		if err == nil {
			err = e.installCRD(context.Background(), filepath.Join(root, "config", "crd", v1.Group+"_"+resource+".yaml")) // that of the test is done
		}
		if err != nil {
			t.Error(err)
		}
	})
}

// moduleRoot is the folder with go.mod, from the folder of the package whose tests run upwards.
func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	for err == nil {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			err = os.ErrNotExist
		}
		dir = filepath.Dir(dir)
	}
	return "", fmt.Errorf("finding root of module: %w", err)
}

var must = kerneltest.Must
