//go:build wasip1

package handler

import _ "event-host.dev/sdk/internal/wit/exports/event" // exports the handler
