//go:build wasip1

package batch

import _ "event-host.dev/sdk/internal/wit/exports/batch" // exports the handler
