package three

var shared = 3

func Exported() {}

func init() {}
