// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"log"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/fdpass"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/isolation/network/rule"
)

// networkProgram is the child that handles the network of boxes (cmd/boxnet). It is started when needed, and again after it has
// died: all its state is in the kernel. It keeps running while a box has a link, because it also watches the firewall table of
// the host, and ends soon after the last one.
type networkProgram struct {
	exe  int    // descriptor of the program
	run  string // the run directory
	args []string
	keys func() []string // boxes that are alive, or not known to be dead
	log  *log.Logger
	stop chan struct{}  // closed by close
	work sync.WaitGroup // a goroutine for each process

	mu        sync.Mutex // guards the fields below
	now       *networkProcess
	linked    map[string]bool // boxes that may have a link
	busy      int             // requests in progress
	failed    error           // why the last start failed, at failedAt; nil: it did not
	lastError string          // its last logged text
	failedAt  time.Time
	retrying  bool        // a goroutine starts it again
	idle      *time.Timer // ends the process; nil: it has never been idle
	closed    bool
}

// networkProcess is one run of boxnet.
type networkProcess struct {
	conn   *fdpass.Conn
	pidfd  int
	ending atomic.Bool // it was asked to end
	stop   <-chan struct{}

	mu      sync.Mutex // guards the fields below, and pidfd against kill
	last    uint32
	pending map[uint32]chan<- networkReply
	ended   bool
}

type networkReply struct {
	m     isolation.KeeperReply
	files []int
}

// Time limits for what normally takes milliseconds. An answer may have to wait for other changes of the host's network.
const (
	networkTimeout = 20 * time.Second
	networkEnd     = 10 * time.Second // for finishing what it has begun, when it is told to end
	networkRestart = time.Second      // pause before it is started again
	networkIdle    = 3 * time.Second  // before it ends when no box needs it
)

var (
	errNetworkGone = errors.New("boxnet has died on this request")
	errNetworkLate = errors.New("boxnet has not answered in time")
	errNotSent     = errors.New("boxnet has ended")
	errKeeperEnds  = errors.New("boxkeeper ends")
)

// openNetworkProgram opens the program; nothing is started yet.
func openNetworkProgram(cfg *config, keys func() []string) (*networkProgram, error) {
	exe, err := unix.Open(cfg.BoxNet(), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", cfg.BoxNet(), err)
	}
	p := &networkProgram{exe: exe, run: cfg.RunDir, args: []string{"boxnet", "-run=" + cfg.RunDir}, keys: keys, log: cfg.Log, stop: make(chan struct{}), linked: map[string]bool{}}
	for _, word := range cfg.Network {
		p.args = append(p.args, "-network="+word)
	}
	return p, nil
}

// adopt takes over the links of living boxes and removes other links.
func (p *networkProgram) adopt() {
	if nothingLeft(p.run) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, err := p.started(); err != nil {
		p.log.Printf("cannot adopt the networks of boxes: %v", err)
	}
	p.armEnd()
}

// nothingLeft reports whether an earlier keeper with this run directory has left nothing in the host's network: no link, and no
// table. A table left by a keeper without boxnet may stay until boxnet is started.
func nothingLeft(run string) bool {
	if mark, err := os.Stat(filepath.Join(run, isolation.KeeperDir, isolation.NetworkLock)); err == nil && mark.Size() > 0 || err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false
	}
	links, err := os.ReadFile("/proc/thread-self/net/dev")
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(links)) {
		if strings.HasPrefix(strings.TrimSpace(line), rule.LinkTag(run)) {
			return false
		}
	}
	return true
}

// started returns the process, after starting it if there is none. p.mu is held.
func (p *networkProgram) started() (*networkProcess, error) {
	if p.now != nil {
		return p.now, nil
	}
	if p.closed {
		return nil, errKeeperEnds
	}
	if p.failed != nil && time.Since(p.failedAt) < networkRestart { // many callers may need it at once
		return nil, p.failed
	}
	n, list, err := p.begin()
	if err != nil {
		p.failed, p.failedAt = fmt.Errorf("start boxnet: %w", err), time.Now()
		for _, key := range p.keys() { // each may have a link
			p.linked[key] = true
		}
		p.retry()
		return nil, p.failed
	}
	clear(p.linked)
	for _, key := range list.Keys {
		p.linked[key] = true
	}
	p.now, p.failed = n, nil
	return n, nil
}

// begin starts a process, and has it adopt the existing links. p.mu is held.
func (p *networkProgram) begin() (*networkProcess, *isolation.Listed, error) {
	n, err := p.start()
	if err != nil {
		return nil, nil, err
	}
	p.work.Go(func() {
		n.receive(p.log)
		n.await()
		p.ended(n)
	})
	reply, err := n.request(&isolation.AdoptNetworks{Keys: p.keys()}, -1)
	if err != nil {
		n.end()
		n.kill() // it may hang
		return nil, nil, err
	}
	switch m := reply.m.(type) {
	case *isolation.Listed:
		return n, m, nil
	case *isolation.StepError:
		err = m
	default:
		err = unix.EPROTO
	}
	n.end()
	return nil, nil, err
}

// retry starts the process again until there is one, or no box has a link. p.mu is held.
func (p *networkProgram) retry() {
	if p.retrying || p.closed || len(p.linked) == 0 {
		return
	}
	p.retrying = true
	p.work.Go(func() {
		for again := true; again; {
			select {
			case <-time.After(networkRestart):
			case <-p.stop:
				return
			}
			again = p.tryAgain()
		}
	})
}

// tryAgain starts the process if one is needed, and reports whether that failed.
func (p *networkProgram) tryAgain() (again bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.now == nil && len(p.linked) > 0 {
		if _, err := p.started(); err != nil && !errors.Is(err, errKeeperEnds) {
			if lastError := err.Error(); lastError != p.lastError { // once, and not each second
				p.log.Printf("cannot start boxnet again: %v", err)
				p.lastError = lastError
			}
			return true
		}
		p.lastError = ""
	}
	p.retrying = false
	p.armEnd()
	return false
}

// start starts a process without environment, and with no descriptors but its socket and the log.
func (p *networkProgram) start() (*networkProcess, error) {
	conn, pidfd, err := fdpass.StartProgram("/proc/self/fd/4", p.args, os.Stderr, syscall.SysProcAttr{}, uintptr(p.exe))
	if err != nil {
		return nil, err
	}
	return &networkProcess{conn: conn, pidfd: pidfd, stop: p.stop, pending: map[uint32]chan<- networkReply{}}, nil
}

// drop forgets a process.
func (p *networkProgram) drop(n *networkProcess) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.now == n {
		p.now = nil
	}
}

// ended handles the end of a process: if it was unexpected, and boxes may have links, another one is started.
func (p *networkProgram) ended(n *networkProcess) {
	p.drop(n)
	if n.ending.Load() {
		return
	}
	p.log.Printf("boxnet has died")
	p.mu.Lock()
	defer p.mu.Unlock()
	p.retry()
}

// request has boxnet carry out a request. space is the network namespace of its box, -1 for none; it stays the caller's. The
// descriptors of the reply are the caller's. The error is a StepError if boxnet refused.
func (p *networkProgram) request(req isolation.KeeperRequest, space int) (isolation.KeeperReply, []int, error) {
	p.mu.Lock()
	p.busy++
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.busy--
		p.armEnd()
	}()
	for {
		p.mu.Lock()
		n, err := p.started()
		p.mu.Unlock()
		if err != nil {
			return nil, nil, err
		}
		reply, err := n.request(req, space)
		if errors.Is(err, errNotSent) { // it has died since it was last used
			p.drop(n)
			continue
		}
		if errors.Is(err, errNetworkLate) {
			n.kill()
		}
		if err != nil {
			return nil, nil, err
		}
		if failed, ok := reply.m.(*isolation.StepError); ok {
			fdpass.CloseAll(reply.files)
			return nil, nil, failed
		}
		return reply.m, reply.files, nil
	}
}

// armEnd lets the process end some time after nothing needs it any more. p.mu is held.
func (p *networkProgram) armEnd() {
	switch {
	case p.busy > 0 || len(p.linked) > 0 || p.now == nil || p.closed:
	case p.idle == nil:
		p.idle = time.AfterFunc(networkIdle, p.endIdle)
	default:
		p.idle.Reset(networkIdle)
	}
}

// endIdle ends the process if nothing needs it.
func (p *networkProgram) endIdle() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.busy == 0 && len(p.linked) == 0 && p.now != nil {
		p.now.end()
		p.now = nil
	}
}

// attach makes the link of a box, and returns the text of its resolv.conf(5).
func (p *networkProgram) attach(key string, space int, spec *isolation.NetworkSpec) (string, error) {
	resolv, err := p.attached(&isolation.AttachNetwork{Key: key, Network: *spec}, space)
	if err == nil {
		p.mu.Lock()
		p.linked[key] = true
		p.mu.Unlock()
	}
	return resolv, err
}

// attached makes a request whose reply is the text of a resolv.conf(5).
func (p *networkProgram) attached(req isolation.KeeperRequest, space int) (string, error) {
	reply, files, err := p.request(req, space)
	if err != nil {
		return "", err
	}
	fdpass.CloseAll(files)
	m, ok := reply.(*isolation.Attached)
	if !ok {
		return "", unix.EPROTO
	}
	return m.Resolv, nil
}

// detach removes the link of a box that has ended, if it may have one.
func (p *networkProgram) detach(key string) {
	p.mu.Lock()
	linked := p.linked[key]
	p.mu.Unlock()
	if !linked {
		return
	}
	_, files, err := p.request(&isolation.DetachNetwork{Key: key}, -1)
	fdpass.CloseAll(files)
	if err != nil {
		p.log.Printf("cannot remove the network of box %s: %v", key, err) // the kernel removes the link with the box
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.linked, key)
	p.armEnd()
}

// check returns what doctor reports about the network of this host.
func (p *networkProgram) check() isolation.Check {
	reply, files, err := p.request(&isolation.CheckNetwork{}, -1)
	fdpass.CloseAll(files)
	if m, ok := reply.(*isolation.Checked); ok && len(m.Checks) == 1 {
		return m.Checks[0]
	}
	return isolation.Check{Name: "box network", Level: isolation.CheckWarn, Detail: fmt.Sprintf("boxes cannot have a network: %v", err)}
}

// close ends the process and waits for it, so that the next keeper finds nothing half done.
func (p *networkProgram) close() {
	close(p.stop)
	p.mu.Lock()
	n := p.now
	p.now, p.closed = nil, true
	if p.idle != nil {
		p.idle.Stop()
	}
	p.mu.Unlock()
	if n != nil {
		n.end()
	}
	p.work.Wait()
	unix.Close(p.exe)
}

// end lets the process finish what it has begun, and then end.
func (n *networkProcess) end() {
	if n.ending.CompareAndSwap(false, true) {
		n.conn.Shutdown()
	}
}

// kill ends the process at once, if it has not ended.
func (n *networkProcess) kill() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.pidfd >= 0 { // its number may be reused for another descriptor later
		_ = unix.PidfdSendSignal(n.pidfd, unix.SIGKILL, nil, 0)
	}
}

// await waits for the end of the process, whose connection has ended, and closes the keeper's descriptors of it.
func (n *networkProcess) await() {
	for _, timeout := range []time.Duration{networkEnd, networkEnd} {
		if n.diesWithin(timeout) {
			break
		}
		n.kill()
	}
	n.conn.Close()
	n.mu.Lock()
	defer n.mu.Unlock()
	unix.Close(n.pidfd)
	n.pidfd = -1
}

// diesWithin reports whether the process ends in time.
func (n *networkProcess) diesWithin(timeout time.Duration) bool {
	deadline := time.Now().Add(timeout)
	poll := []unix.PollFd{{Fd: int32(n.pidfd), Events: unix.POLLIN}}
	for {
		ready, err := unix.Poll(poll, int(max(0, time.Until(deadline)).Milliseconds()))
		if !errors.Is(err, unix.EINTR) {
			return ready > 0 || err != nil
		}
	}
}

// request sends a request and waits for the reply to it.
func (n *networkProcess) request(req isolation.KeeperRequest, space int) (networkReply, error) {
	answer := make(chan networkReply, 1)
	n.mu.Lock()
	if n.ended {
		n.mu.Unlock()
		return networkReply{}, errNotSent
	}
	n.last++
	number := n.last
	n.pending[number] = answer
	n.mu.Unlock()
	var files []int
	if space >= 0 {
		files = []int{space}
	}
	if err := n.conn.Send(isolation.EncodeKeeperRequest(number, req), files...); err != nil {
		n.forget(number)
		if errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, os.ErrClosed) {
			return networkReply{}, errNotSent
		}
		return networkReply{}, fmt.Errorf("ask boxnet: %w", err)
	}
	timer := time.NewTimer(networkTimeout)
	defer timer.Stop()
	select {
	case reply := <-answer:
		if reply.m == nil {
			return networkReply{}, errNetworkGone
		}
		return reply, nil
	case <-n.stop:
		return n.abort(number, answer, errKeeperEnds)
	case <-timer.C:
		return n.abort(number, answer, errNetworkLate)
	}
}

// abort stops waiting for a reply, because of err, unless it has just come.
func (n *networkProcess) abort(number uint32, answer <-chan networkReply, err error) (networkReply, error) {
	n.forget(number)
	select {
	case reply := <-answer:
		if reply.m != nil {
			return reply, nil
		}
	default:
	}
	return networkReply{}, err
}

// forget removes a request from the waiting ones.
func (n *networkProcess) forget(number uint32) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.pending, number)
}

// receive delivers replies to the waiting requests, until the process has ended.
func (n *networkProcess) receive(l *log.Logger) {
	for {
		body, files, err := n.conn.Recv(false)
		if errors.Is(err, fdpass.ErrNoRoom) {
			if number, _, derr := isolation.DecodeKeeperReply(body); derr == nil {
				n.deliver(number, networkReply{m: isolation.NewStepError(isolation.StepNetwork, err.Error(), unix.EMFILE)})
				continue
			}
		}
		if err != nil {
			break
		}
		number, m, err := isolation.DecodeKeeperReply(body)
		if err != nil {
			fdpass.CloseAll(files)
			l.Printf("an answer of boxnet: %v", err)
			break
		}
		n.deliver(number, networkReply{m, files})
	}
	n.conn.Shutdown() // or it would wait for more
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ended = true
	for number, answer := range n.pending {
		delete(n.pending, number)
		answer <- networkReply{}
	}
}

// deliver delivers one reply.
func (n *networkProcess) deliver(number uint32, reply networkReply) {
	n.mu.Lock()
	answer := n.pending[number]
	delete(n.pending, number)
	n.mu.Unlock()
	if answer == nil {
		fdpass.CloseAll(reply.files) // the request was given up
		return
	}
	answer <- reply
}
