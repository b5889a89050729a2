package sdk_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	eh "event-host.dev/sdk"
	"event-host.dev/sdk/hosttest"
)

func event(data string) eh.Event { return eh.Event{Type: "t", Data: []byte(data)} }

func TestAnErrorMeansWhatIsInsideOfIt(t *testing.T) {
	plain := errors.New("line busy")
	cases := []struct {
		err  error
		want eh.Outcome
	}{
		{nil, eh.Outcome{Kind: eh.Done, After: eh.Backoff}},
		{plain, eh.Outcome{Kind: eh.Retried, Reason: "line busy", After: eh.Backoff}},
		{eh.Retry(3*time.Second, "wait"), eh.Outcome{Kind: eh.Retried, Reason: "wait", After: 3 * time.Second}},
		{eh.Retry(0, "now"), eh.Outcome{Kind: eh.Retried, Reason: "now", After: 0}},
		{eh.Reject("never: %w", plain), eh.Outcome{Kind: eh.Rejected, Reason: "never: line busy", After: eh.Backoff}},
		{fmt.Errorf("calling: %w", eh.Reject("no")), eh.Outcome{Kind: eh.Rejected, Reason: "calling: no", After: eh.Backoff}},
		{fmt.Errorf("calling: %w", eh.Retry(eh.Backoff, "no")), eh.Outcome{Kind: eh.Retried, Reason: "calling: no", After: eh.Backoff}},
		{event("").JSON(nil), eh.Outcome{Kind: eh.Rejected, Reason: "the event has no data", After: eh.Backoff}},
		{errors.New("a\xffb"), eh.Outcome{Kind: eh.Retried, Reason: "a\uFFFDb", After: eh.Backoff}},
	}
	for _, c := range cases {
		if got := eh.OutcomeOf(c.err); got != c.want {
			t.Errorf("%v: %+v, wanted %+v", c.err, got, c.want)
		}
	}
	if !errors.Is(eh.Reject("never: %w", plain), plain) {
		t.Error("what was wrapped is lost")
	}
}

func TestDataThatDoesNotDecodeIsARejection(t *testing.T) {
	var value struct{ N int }
	result := hosttest.Call(t, func(e eh.Event) error { return e.JSON(&value) }, event(`{"n": `))
	if result.Outcome.Kind != eh.Rejected || !strings.HasPrefix(result.Outcome.Reason, "the data is not the JSON that this handler takes: ") {
		t.Error(result.Outcome)
	}
	if _, err := event("\xff").Text(); eh.OutcomeOf(err).Kind != eh.Rejected {
		t.Error(err)
	}
}

func TestAnExtensionComesInItsTypeOrSaysThatItHasAnother(t *testing.T) {
	e := eh.Event{Extensions: map[string]any{"flag": true, "n": int32(-3), "s": "text"}}
	if n, found, err := eh.Extension[int32](e, "n"); n != -3 || !found || err != nil {
		t.Error(n, found, err)
	}
	if _, found, err := eh.Extension[bool](e, "absent"); found || err != nil {
		t.Error(found, err)
	}
	if _, _, err := eh.Extension[int32](e, "s"); eh.OutcomeOf(err).Kind != eh.Rejected {
		t.Error(err)
	}
}

func TestAPanicIsARetryWithItsStack(t *testing.T) {
	result := hosttest.Call(t, func(eh.Event) error {
		var none map[string]int
		none["x"] = 1
		return nil
	}, event("1"))
	reason := result.Outcome.Reason
	if result.Outcome.Kind != eh.Retried || !strings.HasPrefix(reason, "panic: assignment to entry in nil map\n") {
		t.Error(result.Outcome)
	}
	first := strings.SplitN(reason, "\n", 3)[1]
	if !strings.Contains(first, "TestAPanicIsARetryWithItsStack") {
		t.Errorf("the stack does not begin at the panic: %s", reason)
	}
}

func TestWhatACallDoesCountsOnlyIfItSucceeds(t *testing.T) {
	host := hosttest.New(t)
	host.SetState("count", 4)
	work := func(e eh.Event) error {
		n, err := eh.State.Int("count")
		if err != nil {
			return err
		}
		if err := eh.State.Set("count", n+1); err != nil {
			return err
		}
		if seen, err := eh.State.Int("count"); seen != n+1 || err != nil {
			return eh.Reject("a call does not see its own write: %d, %v", seen, err)
		}
		if err := eh.Emit("done", nil); err != nil {
			return err
		}
		if e.Attempt < 2 {
			return errors.New("not yet")
		}
		return nil
	}
	if result := host.Call(work, event("1")); result.Err == nil || result.Emits != nil {
		t.Error(result)
	}
	var count int
	if host.State("count", &count); count != 4 {
		t.Error(count)
	}
	again := event("1")
	again.Attempt = 2
	if result := host.Call(work, again); result.Err != nil || len(result.Emits) != 1 {
		t.Error(result)
	}
	if host.State("count", &count); count != 5 {
		t.Error(count)
	}
}

func TestAnEmittedEventHasWhatItWasGiven(t *testing.T) {
	at := time.Date(2026, 2, 3, 4, 5, 6, 0, time.UTC)
	result := hosttest.Call(t, func(eh.Event) error {
		return eh.Emit("t", map[string]string{"html": "<&>"}, eh.ID("i"), eh.Source("/s"), eh.Subject("about"), eh.Time(at),
			eh.DataSchema("https://example.com/schema"), eh.PartitionKey("k"), eh.DeliverAfter(at),
			eh.With("b", int32(1)), eh.With("a", true), eh.With("b", "later"))
	}, event(""))
	got := result.Emits[0]
	if string(got.Data) != `{"html":"<&>"}` || got.DataContentType != "application/json" {
		t.Error(string(got.Data), got.DataContentType)
	}
	if got.ID != "i" || got.Source != "/s" || got.Subject != "about" || got.PartitionKey != "k" || got.DataSchema != "https://example.com/schema" {
		t.Error(got)
	}
	if got.Time != "2026-02-03T04:05:06Z" || got.Extensions["deliverafter"] != "2026-02-03T04:05:06Z" {
		t.Error(got)
	}
	if got.Extensions["a"] != true || got.Extensions["b"] != "later" {
		t.Error(got.Extensions)
	}
}

func TestAMessageThatCannotBeTakenIsARetryThatSaysWhy(t *testing.T) {
	host := hosttest.New(t)
	host.MayEmit = func(eventType string) bool { return eventType != "secret" }
	cases := []struct {
		emit func() error
		want string
	}{
		{func() error { return eh.Emit("", nil) }, "cannot emit an invalid event: `type` is empty"},
		{func() error { return eh.Emit("secret", nil) }, "not allowed to emit: the handler may not emit `secret`"},
		{func() error { return eh.Emit("t", func() {}) }, "cannot emit an invalid event: the data of `t` has no JSON form: json: unsupported type: func()"},
		{func() error { return eh.Emit("t", nil, eh.Subject("\xff")) }, "cannot emit an invalid event: `subject` is not UTF-8: \"\\xff\""},
		{func() error { return eh.Emit("t", nil, eh.WithAll(map[string]any{"n": 1})) }, "cannot emit an invalid event: the extension `n` is int; wanted is bool, int32 or string"},
	}
	for _, c := range cases {
		result := host.Call(func(eh.Event) error { return c.emit() }, event(""))
		if result.Outcome.Kind != eh.Retried || result.Outcome.Reason != c.want {
			t.Errorf("%v, wanted %s", result.Outcome, c.want)
		}
	}
}

func TestValuesComeBackAsTheyWereSetUntilTheyAreDeleted(t *testing.T) {
	hosttest.Call(t, func(eh.Event) error {
		check := func(ok bool, what any) {
			t.Helper()
			if !ok {
				t.Error(what)
			}
		}
		check(eh.State.Set("a/1", []int{1, 2}) == nil, "set")
		check(eh.State.Set("a/2", "text") == nil, "set")
		check(eh.State.SetBytes("b", []byte{0, 0xff}) == nil, "set bytes")
		var list []int
		found, err := eh.State.Get("a/1", &list)
		check(found && err == nil && len(list) == 2, err)
		bytes, found, err := eh.State.Bytes("b")
		check(found && err == nil && string(bytes) == "\x00\xff", bytes)
		keys, err := eh.State.Keys("a/", 10)
		check(err == nil && strings.Join(keys, " ") == "a/1 a/2", keys)
		keys, err = eh.State.Keys("", 2)
		check(err == nil && strings.Join(keys, " ") == "a/1 a/2", keys)
		check(eh.State.Delete("a/1") == nil && eh.State.Delete("a/1") == nil, "delete")
		found, err = eh.State.Get("a/1", &list)
		check(!found && err == nil, err)
		_, err = eh.State.Int("a/2")
		check(eh.OutcomeOf(err).Kind == eh.Retried && strings.HasPrefix(err.Error(), "the state's `a/2` is not the JSON"), err)
		_, err = eh.State.Int("")
		check(err != nil && err.Error() == "not a key of the state: it is empty", err)
		_, err = eh.State.Int("\xff")
		check(err != nil && eh.OutcomeOf(err).Kind == eh.Retried, err)
		return nil
	}, event(""))
}

func TestAHandlerKnowsItsCallAndWritesToTheLog(t *testing.T) {
	host := hosttest.New(t)
	host.Tenant, host.Replay, host.Late, host.RemainingMS = "acme", true, true, 1500
	host.Call(func(eh.Event) error {
		c := eh.Context
		if c.Group() != "test" || c.Tenant() != "acme" || !c.IsReplay() || !c.IsLate() || c.Remaining() != 1500*time.Millisecond {
			t.Error(c.Group(), c.Tenant(), c.IsReplay(), c.IsLate(), c.Remaining())
		}
		eh.Log.Trace("%d", 1)
		eh.Log.Debug("%d", 2)
		eh.Log.Info("%d", 3)
		eh.Log.Warn("%d", 4)
		eh.Log.Error("%d\xff", 5)
		return nil
	}, event(""))
	if got := strings.Join(host.Lines, ", "); got != "trace: 1, debug: 2, info: 3, warn: 4, error: 5\uFFFD" {
		t.Error(got)
	}
}

func TestABatchIsKeptWholeOrComesAgainOneByOne(t *testing.T) {
	host := hosttest.New(t)
	calls := 0
	work := func(events []eh.Event) []error {
		calls++
		errs := make([]error, len(events))
		for i, e := range events {
			n, _ := eh.State.Int("count")
			if err := eh.State.Set("count", n+1); err != nil {
				errs[i] = err
			}
			if string(e.Data) == "bad" {
				errs[i] = eh.Reject("bad")
			}
			if err := eh.Emit("seen", nil, eh.Subject(string(e.Data))); err != nil {
				errs[i] = err
			}
		}
		return errs
	}
	var count int
	results := host.CallBatch(work, []eh.Event{event("a"), event("b")})
	if host.State("count", &count); count != 2 || calls != 1 || len(results[1].Emits) != 2 {
		t.Error(count, calls, results)
	}
	results = host.CallBatch(work, []eh.Event{event("a"), event("bad"), event("c")})
	if host.State("count", &count); count != 4 || calls != 5 {
		t.Error(count, calls)
	}
	if results[1].Outcome.Kind != eh.Rejected || results[1].Emits != nil || results[2].Emits[0].Subject != "c" {
		t.Error(results)
	}
	results = host.CallBatch(func([]eh.Event) []error { return nil }, []eh.Event{event("a")})
	if results[0].Outcome.Reason != "the handler gave 0 results for 1 events" {
		t.Error(results)
	}
	results = host.CallBatch(func([]eh.Event) []error { panic("oh") }, []eh.Event{event("a"), event("b")})
	if len(results) != 2 || !strings.HasPrefix(results[1].Outcome.Reason, "panic: oh\n") {
		t.Error(results)
	}
}
