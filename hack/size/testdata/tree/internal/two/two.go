package two

type shared struct{ only int }

func Exported() {}

func init() {}
