package two

import "example.com/elsewhere"

type shared struct{ only int }

// Pair has three fields, of which one cannot be looked into: it is what another module has.
type Pair struct {
	shared
	elsewhere.Unknown
	own int
}

func Exported() {}

func init() {}
