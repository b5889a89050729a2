package sdk

import (
	"fmt"
	"strings"

	"event-host.dev/sdk/internal/host"
)

// Level is how much a line of the log matters.
type Level uint8

// How much a line of the log matters.
const (
	LevelTrace Level = iota
	LevelDebug
	LevelInfo
	LevelWarn
	LevelError
)

// Log writes lines to the host's log, made as by [fmt.Sprintf]. The host adds the group,
// the handler, the event's id and the attempt.
var Log hostLog

type hostLog struct{}

// Trace writes a step, for whoever debugs the handler.
func (hostLog) Trace(format string, args ...any) { write(LevelTrace, fmt.Sprintf(format, args...)) }

// Debug writes a detail.
func (hostLog) Debug(format string, args ...any) { write(LevelDebug, fmt.Sprintf(format, args...)) }

// Info writes what is worth knowing.
func (hostLog) Info(format string, args ...any) { write(LevelInfo, fmt.Sprintf(format, args...)) }

// Warn writes what may need a look.
func (hostLog) Warn(format string, args ...any) { write(LevelWarn, fmt.Sprintf(format, args...)) }

// Error writes what does need a look.
func (hostLog) Error(format string, args ...any) { write(LevelError, fmt.Sprintf(format, args...)) }

func write(level Level, line string) {
	host.Log(uint8(level), strings.ToValidUTF8(line, "\uFFFD"))
}
