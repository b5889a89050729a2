//go:build wasip1

package wit_types

type Unit struct{}
