package sdk

import (
	"math"
	"time"

	"event-host.dev/sdk/internal/host"
)

// Context is what the handler may know of the call it is in.
var Context callContext

type callContext struct{}

// Group is the consumer group's name.
func (callContext) Group() string { return host.Group() }

// Tenant is the tenant that owns the handler and the event, or empty.
func (callContext) Tenant() string { return host.Tenant() }

// Remaining is how long the host lets this attempt go on.
func (callContext) Remaining() time.Duration {
	return time.Duration(min(host.RemainingMS(), math.MaxInt64/uint64(time.Millisecond))) * time.Millisecond
}

// IsReplay says whether this event is a dead letter that an operator replayed.
func (callContext) IsReplay() bool { return host.IsReplay() }

// IsLate says whether this event comes after later events of the log were already
// handed to this group.
func (callContext) IsLate() bool { return host.IsLate() }
