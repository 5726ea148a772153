package v
