// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/nats-io/nats.go"

	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/relay/api"
	"github.com/boxd-dev/boxd/relay/client"
)

// Before a node ends a session that is somebody else's by now, a gateway takes what its processes have written. The node can neither read
// nor change what is kept: it knows no store, and sends requests that any gateway answers.

// Bounds of that. A session ends when the time is over, whatever was taken until then.
const (
	handOverFor   = 30 * time.Second
	askFor        = 3 * time.Second        // of that: for a gateway that keeps output to be there
	stopFor       = handOverFor / 2        // of that: for processes to end
	partTimeout   = requestTimeout * 3 / 2 // for the answer of a gateway, which asks NATS
	partPause     = 250 * time.Millisecond
	maxHandingOut = 2 // sessions at a time: each is up to maxPacked in memory
	maxRefused    = 4 // processes of a session whose output is refused, before the rest is not tried

	maxKept   = int64(quantity.MiB) // bytes of a stream: its last ones, where there is more
	partSize  = 128 << 10           // bytes: announcements wait behind a part
	maxParts  = 24
	maxPacked = maxParts * partSize
)

// outputBounds are how much of the output of a process is handed over.
type outputBounds struct {
	stream int64 // bytes of a stream
	packed int   // bytes of both with their times
}

// outputHeader is the header of a message with an outputPart.
const outputHeader = "Boxd-Output"

// Subjects of gateways: where one answers that keeps output, and where one hears that output was not kept.
const (
	outputSubject = gatewaySubject + ".output"
	lostSubject   = outputSubject + ".lost"
)

// outputPart is what a message with a part of the output of a process is about.
type outputPart struct {
	api.FleetOutput
	Generation uint64 `json:"generation"`     // of the claim that the node had
	Part       int    `json:"part"`           // from 0; Parts: it has none, and says that all are there
	Parts      int    `json:"parts"`          // that there are
	Packed     int    `json:"packed"`         // bytes of all parts
	Lost       string `json:"lost,omitempty"` // nothing of it is kept, for this reason: gateways tell that
	Ask        bool   `json:"ask,omitempty"`  // it asks whether output is kept at all
}

// outputTaken is the answer to one.
type outputTaken struct {
	Error string `json:"error,omitempty"`
	Again bool   `json:"again,omitempty"` // it may be taken later
}

// errNotTaken is why a gateway takes nothing, now or later.
type errNotTaken struct{ reason string }

func (e *errNotTaken) Error() string { return e.reason }

// errNoTaker means that no gateway is there that keeps output.
var errNoTaker = errors.New("no gateway keeps output, or none is connected: [outputs] of gateway.toml")

// handOver has a gateway keep what the processes of a session have written that this node is about to end, for a bounded time. They end
// first: the output is then whole. again: boxd did not answer, and if it does not end the session either it may be tried again.
func (a *agent) handOver(baseCtx context.Context, boxd *client.Client, h *fencedSession, session, why string) (again bool) {
	ctx, cancel := context.WithTimeout(baseCtx, a.timeout)
	defer cancel()
	about := outputPart{FleetOutput: api.FleetOutput{Owner: h.Owner, Session: session, Node: a.name, Why: why}, Generation: h.Generation}
	list, err := hasWritten(ctx, boxd, session)
	if err == nil && len(list) > 0 {
		if err = a.findTaker(ctx, &about); err == nil {
			list, err = stopAll(ctx, boxd, session, list)
		}
	}
	switch {
	case errors.Is(err, client.NotFound):
		return false // it has ended
	case err == nil && len(list) == 0:
		return false
	case err == nil:
		select {
		case a.handing <- struct{}{}:
			defer func() { <-a.handing }()
		case <-ctx.Done():
			err = errors.New("too many sessions end at once")
		}
	}
	if baseCtx.Err() != nil {
		return false // this agent ends, and the next one ends the session
	}
	if err != nil {
		a.outputLost(&about, err)
		_, refused := errors.AsType[*errNotTaken](err)
		return !refused && ctx.Err() == nil && !errors.Is(err, errNoTaker)
	}
	refused := 0
	for i := range list {
		if ctx.Err() != nil || refused == maxRefused {
			a.outputLost(&about, fmt.Errorf("%d more of its processes were not handed over", len(list)-i))
			return false
		}
		part := about
		part.describe(&list[i])
		err := a.handOverProcess(ctx, boxd, &part)
		switch {
		case baseCtx.Err() != nil:
			return false
		case errors.Is(err, client.NotFound): // its owner has removed it
			continue
		case err != nil:
			if _, not := errors.AsType[*errNotTaken](err); not {
				refused++
			}
			a.outputLost(&part, err)
			continue
		}
		a.log.Info("a gateway keeps the output of a process", "session", session, "owner", h.Owner, "process", part.Process, "bytes", part.Size)
	}
	return false
}

// findTaker looks for a gateway that keeps output, so that nothing waits where none does.
func (a *agent) findTaker(ctx context.Context, about *outputPart) error {
	request := *about
	request.Ask = true
	return a.sendPart(ctx, &request, nil)
}

// outputLost says that output was not kept: in the log, and to a gateway, for its events. NATS may be away: then nobody hears it there.
func (a *agent) outputLost(p *outputPart, err error) {
	p.Lost = err.Error()
	p.Lost = strings.ToValidUTF8(p.Lost[:min(len(p.Lost), maxReason)], "")
	a.log.Warn("the output of a session that ends is not kept", "session", p.Session, "owner", p.Owner, "process", p.Process, "reason", p.Lost)
	m, err := p.message(lostSubject, nil)
	if err == nil {
		err = a.nc.PublishMsg(m)
	}
	if err != nil {
		a.log.Warn("cannot tell gateways of that", "error", err)
	}
}

// hasWritten lists the processes of a session that may have output.
func hasWritten(ctx context.Context, boxd *client.Client, session string) ([]api.Process, error) {
	info, err := boxd.Session(ctx, session)
	if err != nil || info.StoppedAt != nil { // then there is no output any more
		return nil, err
	}
	return boxd.Processes(ctx, session)
}

// stopAll ends processes of a session, and lists all as they are then. Those that take too long are listed as they are.
func stopAll(ctx context.Context, boxd *client.Client, session string, list []api.Process) ([]api.Process, error) {
	stopCtx, cancel := context.WithTimeout(ctx, stopFor)
	defer cancel()
	var wg sync.WaitGroup
	for i := range list {
		if list[i].State != "ended" {
			wg.Go(func() { _, _ = boxd.StopProcess(stopCtx, session, list[i].ID) }) // it says how it is below
		}
	}
	wg.Wait()
	list, err := boxd.Processes(ctx, session)
	slices.SortStableFunc(list, func(a, b api.Process) int { return a.StartedAt.Compare(b.StartedAt) })
	return list, err
}

// describe says which process it is about.
func (p *outputPart) describe(of *api.Process) {
	p.Process, p.State, p.Reason, p.StartedAt, p.EndedAt = of.ID, of.State, of.Reason, of.StartedAt, of.EndedAt
	p.Omitted = of.Output[0].Bytes + of.Output[1].Bytes // less what is kept
	if r := of.Result; r != nil {
		p.Status, p.ExitCode, p.Signal = r.Status, r.ExitCode, r.Signal
	}
}

func (a *agent) handOverProcess(ctx context.Context, boxd *client.Client, p *outputPart) error {
	packed, size, err := a.bounds.retained(ctx, boxd, p.Session, p.Process)
	if err != nil {
		return err
	}
	p.Size, p.Omitted, p.Packed = size, max(p.Omitted-size, 0), len(packed)
	parts := slices.Collect(slices.Chunk(packed, partSize))
	p.Parts = len(parts)
	for p.Part = 0; p.Part <= p.Parts; p.Part++ {
		var data []byte
		if p.Part < p.Parts {
			data = parts[p.Part]
		}
		if err := a.sendPart(ctx, p, data); err != nil {
			return err
		}
	}
	return nil
}

// errTooMuch means that output does not fit.
var errTooMuch = errors.New("its output is too large")

// retained reads what is kept of the output of a process, as pieces with their times, packed. Of a stream with more than the bound there are
// the last bytes; of many tiny pieces there are fewer, as each takes room of its own.
func (b outputBounds) retained(ctx context.Context, boxd *client.Client, session, process string) (packed []byte, size int64, err error) {
	for _, last := range []int64{0, b.stream, b.stream / 4, b.stream / 16} {
		if packed, size, err = b.pack(ctx, boxd, session, process, last); !errors.Is(err, errTooMuch) {
			break
		}
	}
	return packed, size, err
}

// pack reads the last bytes of each stream; 0: all that is kept.
func (b outputBounds) pack(ctx context.Context, boxd *client.Client, session, process string, last int64) ([]byte, int64, error) {
	var out bytes.Buffer
	zip := gzip.NewWriter(&out)
	lines := json.NewEncoder(zip)
	lines.SetEscapeHTML(false)
	sizes := map[string]int64{}
	err := boxd.LogLines(ctx, session, process, client.LogOptions{Tail: last}, func(line *api.LogLine) error {
		if sizes[line.Stream] += int64(len(line.Data)); sizes[line.Stream] > b.stream || out.Len() > b.packed {
			return errTooMuch
		}
		if line.Base64 = !utf8.ValidString(line.Data); line.Base64 {
			line.Data = base64.StdEncoding.EncodeToString([]byte(line.Data))
		}
		return lines.Encode(line)
	})
	if err == nil {
		err = zip.Close()
	}
	if err == nil && out.Len() > b.packed {
		err = errTooMuch
	}
	return out.Bytes(), sizes["stdout"] + sizes["stderr"], err
}

// sendPart has a gateway take a part, and tries again where that may help.
func (a *agent) sendPart(ctx context.Context, p *outputPart, data []byte) error {
	for start := time.Now(); ; {
		err := a.tryPart(ctx, p, data)
		if _, refused := errors.AsType[*errNotTaken](err); err == nil || refused {
			return err
		}
		if errors.Is(err, errNoTaker) && p.Ask && time.Since(start) > askFor {
			return err
		}
		select {
		case <-time.After(partPause):
		case <-ctx.Done():
			return err
		}
	}
}

func (a *agent) tryPart(ctx context.Context, p *outputPart, data []byte) error {
	ctx, cancel := context.WithTimeout(ctx, partTimeout)
	defer cancel()
	m, err := p.message(outputSubject, data)
	if err != nil {
		return err
	}
	m.Reply = nodeSubject + a.name + ".output." + rand.Text() // where gateways may publish and this node alone hears it, unlike its inbox
	replies, err := a.nc.SubscribeSync(m.Reply)
	if err != nil {
		return fmt.Errorf("no gateway is asked: %w", err)
	}
	defer func() { _ = replies.Unsubscribe() }() // of a connection that may be closed
	if err := a.nc.PublishMsg(m); err != nil {
		return fmt.Errorf("no gateway is asked: %w", err)
	}
	answer, err := replies.NextMsgWithContext(ctx)
	if errors.Is(err, nats.ErrNoResponders) {
		return errNoTaker
	}
	if err != nil {
		return fmt.Errorf("no gateway answers: %w", err)
	}
	var reply outputTaken
	switch err := json.Unmarshal(answer.Data, &reply); {
	case err != nil:
		return err
	case reply.Error == "":
		return nil
	case reply.Again:
		return errors.New(reply.Error)
	}
	return &errNotTaken{reply.Error}
}

func (p *outputPart) message(to string, data []byte) (*nats.Msg, error) {
	about, err := json.Marshal(p)
	if err != nil {
		return nil, err
	}
	return &nats.Msg{Subject: to, Header: nats.Header{outputHeader: {string(about)}}, Data: data}, nil
}

// readPart reads a message of a node.
func readPart(m *nats.Msg) (*outputPart, error) {
	p := &outputPart{}
	if err := json.Unmarshal([]byte(m.Header.Get(outputHeader)), p); err != nil {
		return nil, fmt.Errorf("output without a header: %w", err)
	}
	ok := p.Owner != "" && p.Session != "" && p.Parts >= 0 && p.Parts <= maxParts && p.Part >= 0 && p.Part <= p.Parts && p.Packed >= 0 && p.Packed <= maxPacked
	if !ok || len(m.Data) > partSize || p.Part == p.Parts && len(m.Data) > 0 || len(m.Header.Get(outputHeader)) > maxAbout {
		return nil, fmt.Errorf("output that breaks the bounds: part %d of %d, %d bytes", p.Part, p.Parts, len(m.Data))
	}
	return p, nil
}
