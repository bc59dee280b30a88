// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// maxConns bounds the TCP connections of one box at a time.
const maxConns = 8

// Serve answers the queries of one box until a context ends or a socket fails, with that error. It
// closes both sockets, and returns when all its goroutines have ended.
func (r *resolver) Serve(until context.Context, box *resolverBox, packets net.PacketConn, streams net.Listener) error {
	ctx, cancel := context.WithCancelCause(until)
	s := &dnsServer{resolver: r, box: box, busy: make(chan struct{}, r.cfg.PerBox), conns: make(chan struct{}, maxConns)}
	stop := context.AfterFunc(ctx, func() { _ = packets.Close(); streams.Close() })
	defer stop()
	s.wg.Go(func() { cancel(s.servePackets(ctx, packets)) })
	s.wg.Go(func() { cancel(s.serveStreams(ctx, streams)) })
	<-ctx.Done()
	_ = packets.Close()
	streams.Close()
	s.wg.Wait()
	if until.Err() != nil {
		return nil
	}
	return context.Cause(ctx)
}

func (s *dnsServer) servePackets(ctx context.Context, packets net.PacketConn) error {
	buf := make([]byte, maxQuery)
	for {
		n, from, err := packets.ReadFrom(buf)
		if err != nil {
			return err
		}
		msg := append([]byte(nil), buf[:n]...)
		free, ok := s.enter()
		if !ok {
			s.write(packets, busy(msg), from)
			continue
		}
		s.wg.Go(func() {
			defer free()
			s.write(packets, s.answer(ctx, msg, true), from)
		})
	}
}

// write sends an answer. If it cannot be sent it is lost, as any packet may be.
func (s *dnsServer) write(packets net.PacketConn, msg []byte, to net.Addr) {
	if len(msg) == 0 {
		return
	}
	if err := packets.SetWriteDeadline(time.Now().Add(s.cfg.Idle)); err != nil {
		return
	}
	_, _ = packets.WriteTo(msg, to)
}

func (s *dnsServer) serveStreams(ctx context.Context, streams net.Listener) error {
	for {
		c, err := streams.Accept()
		if err != nil {
			return err
		}
		select {
		case s.conns <- struct{}{}:
		default:
			c.Close()
			continue
		}
		s.wg.Go(func() {
			defer func() { <-s.conns }()
			defer c.Close()
			stop := context.AfterFunc(ctx, func() { c.Close() })
			defer stop()
			for s.exchange(ctx, c) {
			}
		})
	}
}

// exchange answers one query of a connection; false at its end.
func (s *dnsServer) exchange(ctx context.Context, c net.Conn) bool {
	if c.SetDeadline(time.Now().Add(s.cfg.Idle)) != nil {
		return false
	}
	msg, err := readStream(c, maxQuery)
	if err != nil {
		return false
	}
	var answer []byte
	if free, ok := s.enter(); ok {
		answer = s.answer(ctx, msg, false)
		free()
	} else {
		answer = busy(msg)
	}
	if len(answer) == 0 || c.SetDeadline(time.Now().Add(s.cfg.Idle)) != nil {
		return false
	}
	_, err = c.Write(framed(answer))
	return err == nil
}

// enter starts a query if the box is within its limits; free ends it.
func (s *dnsServer) enter() (free func(), ok bool) {
	if !s.pace.take(s.cfg.Rate, time.Now()) {
		return nil, false
	}
	select {
	case s.busy <- struct{}{}:
	default:
		return nil, false
	}
	select {
	case s.resolver.busy <- struct{}{}:
		return func() { <-s.resolver.busy; <-s.busy }, true
	default:
		<-s.busy
		return nil, false
	}
}

// busy returns the answer to a box that sends too many queries.
func busy(msg []byte) []byte {
	q, ok := readQuery(msg)
	if !ok {
		return nil
	}
	q.code = dnsmessage.RCodeServerFailure
	return q.reply(true)
}

// readStream reads a message with its length in front.
func readStream(r io.Reader, limit int) ([]byte, error) {
	var size [2]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return nil, err
	}
	n := int(binary.BigEndian.Uint16(size[:]))
	if n > limit {
		return nil, errTooLong
	}
	msg := make([]byte, n)
	_, err := io.ReadFull(r, msg)
	return msg, err
}

func framed(msg []byte) []byte {
	return append(binary.BigEndian.AppendUint16(nil, uint16(len(msg))), msg...)
}
