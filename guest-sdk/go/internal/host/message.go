// Package host is what the SDK asks of the host: by the bindings in a component, by a
// host in memory in tests.
package host

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// Message is an event to emit. What is nil is filled in by the host.
type Message struct {
	Type                        string
	Data                        []byte
	ID, Source, Subject, Time   *string
	DataContentType, DataSchema *string
	PartitionKey                *string
	Extensions                  []Extension
}

// Extension is an extension attribute: a bool, an int32 or a string.
type Extension struct {
	Name  string
	Value any
}

// SetExtension sets an attribute; a later value of the same name replaces the earlier.
// They are kept sorted by name.
func (m *Message) SetExtension(name string, value any) {
	place, found := slices.BinarySearchFunc(m.Extensions, name, func(own Extension, name string) int {
		return strings.Compare(own.Name, name)
	})
	if found {
		m.Extensions[place].Value = value
		return
	}
	m.Extensions = slices.Insert(m.Extensions, place, Extension{name, value})
}

// Problem says why the message cannot be handed to the host, which takes texts of UTF-8
// and extensions of three types; empty if it can.
func (m *Message) Problem() string {
	texts := map[string]*string{
		"type": &m.Type, "id": m.ID, "source": m.Source, "subject": m.Subject, "time": m.Time,
		"datacontenttype": m.DataContentType, "dataschema": m.DataSchema, "partitionkey": m.PartitionKey,
	}
	for name, text := range texts {
		if text != nil && !utf8.ValidString(*text) {
			return fmt.Sprintf("`%s` is not UTF-8: %q", name, *text)
		}
	}
	for _, extension := range m.Extensions {
		if !utf8.ValidString(extension.Name) {
			return fmt.Sprintf("the name of an extension is not UTF-8: %q", extension.Name)
		}
		switch value := extension.Value.(type) {
		case bool, int32:
		case string:
			if !utf8.ValidString(value) {
				return fmt.Sprintf("the extension `%s` is not UTF-8: %q", extension.Name, value)
			}
		default:
			return fmt.Sprintf("the extension `%s` is %T; wanted is bool, int32 or string", extension.Name, value)
		}
	}
	return ""
}

// Failed is an error of the host's: the case of its variant, and its text.
type Failed struct {
	Kind uint8
	Text string
}
