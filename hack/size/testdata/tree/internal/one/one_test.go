package one

func helper() {}
