// SPDX-FileCopyrightText: The kubediag Authors
// SPDX-License-Identifier: Apache-2.0

// Package flags is the common part of the command lines of the manager and the agent: an environment variable stands in for
// every flag, and --verbosity has bounds.
package flags

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"
)

// envRule is for the help of a command whose flags FromEnv fills in.
const envRule = "A flag that is not given is read from the environment variable KUBEDIAG_<FLAG>, in capitals and with _ for -."

// Env are the variables that flags were read from, as NAME="value", by flag.
type Env map[string]string

// FromEnv fills in the flags that were not given: from KUBEDIAG_<FLAG>, or else from the variable that others names.
func FromEnv(flags *pflag.FlagSet, others map[string]string, lookup func(string) (string, bool)) (Env, error) {
	env := Env{}
	var errs []error
	flags.VisitAll(func(flag *pflag.Flag) {
		if flag.Changed || flag.Name == "help" || flag.Name == "version" {
			return
		}
		for _, name := range []string{"KUBEDIAG_" + strings.ToUpper(strings.ReplaceAll(flag.Name, "-", "_")), others[flag.Name]} {
			value, ok := lookup(name)
			if !ok || name == "" {
				continue
			}
			env[flag.Name] = fmt.Sprintf("%s=%q", name, value)
			if err := flags.Set(flag.Name, value); err != nil {
				errs = append(errs, fmt.Errorf("reading %s for --%s: %w", env[flag.Name], flag.Name, err))
			}
			return
		}
	})
	return env, errors.Join(errs...)
}

// usageError is a problem with the value of a flag.
type usageError struct {
	Flag    string // its name
	Value   any
	Problem string
}

// Error names the flag and the value.
func (e *usageError) Error() string { return fmt.Sprintf("--%s=%v: %s", e.Flag, e.Value, e.Problem) }

// Invalid makes an Error.
func Invalid(flag string, value any, problem string) error {
	return &usageError{Flag: flag, Value: value, Problem: problem}
}

// CheckNamespace returns an error unless the flag namespace has the name of one.
func CheckNamespace(name string) error {
	if name == "" {
		return errors.New("--namespace (or POD_NAMESPACE) must be set")
	}
	if problems := validation.IsDNS1123Label(name); len(problems) > 0 {
		return Invalid("namespace", name, problems[0])
	}
	return nil
}

// Off is the address of a server that does not listen.
const Off = "0"

// CheckAddress returns an error unless a flag has a TCP address, or Off.
func CheckAddress(flag, address string) error {
	if _, err := net.ResolveTCPAddr("tcp", address); address != Off && (err != nil || address == "") {
		return Invalid(flag, address, "must be host:port, or 0 for off")
	}
	return nil
}

// Explain adds to an error the variables of the flags that it is about.
func (e Env) Explain(err error) error {
	names := flagsOf(err)
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		if variable, ok := e[name]; ok {
			err = fmt.Errorf("%w (read from %s)", err, variable)
		}
	}
	return err
}

// flagsOf lists the flags that an error is about, or errors that were joined.
func flagsOf(err error) (names []string) {
	type joined interface {
		error
		Unwrap() []error
	}
	if all, ok := errors.AsType[joined](err); ok {
		for _, one := range all.Unwrap() {
			names = append(names, flagsOf(one)...)
		}
	} else if one, ok := errors.AsType[*usageError](err); ok {
		names = []string{one.Flag}
	}
	return names
}

// verbosityValue is how much is logged, 0 to 10.
type verbosityValue int

// Bind adds the flag.
func (v *verbosityValue) Bind(f *pflag.FlagSet) {
	f.VarP(v, "verbosity", "v", "how much is logged, 0 to 10")
}

// Set is for pflag.
func (v *verbosityValue) Set(text string) error {
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || n > 10 {
		return errors.New("must be a number from 0 to 10")
	}
	*v = verbosityValue(n)
	return nil
}

// String is for pflag.
func (v *verbosityValue) String() string { return strconv.Itoa(int(*v)) }

// Type is for pflag.
func (*verbosityValue) Type() string { return "int" }

// Level is for log/slog: logr's V(n) arrives there as level -n.
func (v *verbosityValue) Level() slog.Level { return slog.Level(-*v) }
