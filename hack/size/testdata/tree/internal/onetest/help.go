package onetest

func Help() {}
