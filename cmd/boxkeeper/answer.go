// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/fdpass"
	"github.com/boxd-dev/boxd/isolation"
)

// answer handles one request. What has begun is finished or undone even if ctx ends; only the
// wait for a filesystem is given up. If the reply cannot be sent, boxd is gone.
func (k *keeper) answer(ctx context.Context, conn *fdpass.Conn, number uint32, req isolation.KeeperRequest) {
	if m, ok := req.(*isolation.Launch); ok {
		k.answerLaunch(ctx, conn, number, m)
		return
	}
	reply, files := k.handle(ctx, req)
	_ = conn.Send(isolation.EncodeKeeperReply(number, reply), files...)
	fdpass.CloseAll(files)
}

// handle carries out a request and returns the reply to it. The files are the caller's.
func (k *keeper) handle(ctx context.Context, req isolation.KeeperRequest) (reply isolation.KeeperReply, files []int) {
	if err := refuse(req); err != nil {
		return isolation.NewStepError(isolation.StepSetup, err.Error(), err), nil
	}
	switch m := req.(type) {
	case *isolation.Hello:
		return &k.greeting, nil
	case *isolation.Adopt:
		return k.answerAdopt(m)
	case *isolation.ListBoxes:
		return page(k.living(), m.After), nil
	case *isolation.EndBox:
		return done(isolation.StepWorkspace, m.Key, k.end(m)), nil
	case *isolation.WhyEnded:
		return k.whyEnded(m.Key), nil
	case *isolation.KeepTree:
		return done(isolation.StepWorkspace, m.Key, k.keepTree(m)), nil
	case *isolation.RemoveTree:
		return done(isolation.StepWorkspace, "", k.removeTree(m.Tree)), nil
	case *isolation.SetLimits:
		return doneOr(isolation.StepGroup, k.setLimits(m)), nil
	case *isolation.SetOwnerLimits:
		return doneOr(isolation.StepGroup, k.groups.setOwner(k, &m.Owner)), nil
	case *isolation.SetHostname:
		return done(isolation.StepHostname, m.Key, k.setHostname(m)), nil
	case *isolation.Reclaim:
		return done(isolation.StepGroup, m.Key, k.reclaim(m.Key)), nil
	case *isolation.ChangeMount:
		return k.answerChangeMount(ctx, m), nil
	case *isolation.ChangeSpace:
		return done(isolation.StepWorkspace, m.Key, overUsed(k.work.ChangeSpace(m))), nil
	case *isolation.ChangeSnapshots:
		return k.answerChangeSnapshots(ctx, m), nil
	case *isolation.ReadQuota:
		return k.answerReadQuota(m), nil
	case *isolation.LookHost:
		return k.answerLookHost(), nil
	case *isolation.CheckHost:
		return &isolation.Checked{Checks: k.checks()}, nil //nolint:contextcheck // what takes its time bounds itself
	}
	return k.handleNetwork(req)
}

// done returns the reply to a request that has no result but an error.
func done(step isolation.Step, item string, err error) isolation.KeeperReply {
	if err != nil {
		return isolation.NewStepError(step, item, err)
	}
	return &isolation.Done{}
}

// doneOr is done for an error that may already say what it is about.
func doneOr(step isolation.Step, err error) isolation.KeeperReply {
	if err != nil {
		return isolation.NewStepError(step, err.Error(), err)
	}
	return &isolation.Done{}
}

// refuse refuses a request whose key is not a valid box key: keys become names in directories of
// root. A key inside a specification, a mount or a workspace is validated with those.
func refuse(req isolation.KeeperRequest) error {
	var key string
	switch m := req.(type) {
	case *isolation.SetOwnerLimits:
		if !validOwner(m.Owner.Name) {
			return fmt.Errorf("name of an owner: %w", unix.EINVAL)
		}
		return nil
	case *isolation.ListBoxes:
		if m.After == "" {
			return nil
		}
		key = m.After
	case *isolation.EndBox:
		key = m.Key
	case *isolation.WhyEnded:
		key = m.Key
	case *isolation.KeepTree:
		key = m.Key
	case *isolation.SetLimits:
		key = m.Key
	case *isolation.Adopt:
		key = m.Key
	case *isolation.SetHostname:
		key = m.Key
	case *isolation.Reclaim:
		key = m.Key
	case *isolation.ReadTraffic:
		key = m.Key
	case *isolation.ReadRefusals:
		key = m.Key
	case *isolation.SetNetwork:
		key = m.Key
	case *isolation.PinAddresses:
		key = m.Key
	case *isolation.OpenSockets:
		key = m.Key
	case *isolation.Dial:
		key = m.Key
	case *isolation.DialLoopback:
		key = m.Key
	default:
		return nil
	}
	if !isolation.ValidKey(key) {
		return fmt.Errorf("key of a box: %w", unix.EINVAL)
	}
	return nil
}

// answerLaunch starts a box. If the reply does not reach boxd the box is killed, as boxd would not know of it.
func (k *keeper) answerLaunch(ctx context.Context, conn *fdpass.Conn, number uint32, req *isolation.Launch) {
	l := k.launch(ctx, &req.Spec)
	if l.failed != nil {
		k.cfg.Log.Printf("cannot start box %s: %v", req.Spec.Key, l.failed)
		_ = conn.Send(isolation.EncodeKeeperReply(number, l.failed))
		return
	}
	defer k.ahead.leave(k) //nolint:contextcheck // what it makes is for whoever comes next
	files := []int{l.preforked.control, l.preforked.pidfd}
	launched := &isolation.Launched{PID: uint32(l.preforked.pid), IDBase: l.preforked.ids.Base, Group: l.box.path()}
	k.mu.Lock()
	l.box.handedOver = true // before the reply, after which boxd may ask for the list
	k.mu.Unlock()
	err := conn.Send(isolation.EncodeKeeperReply(number, launched), files...)
	fdpass.CloseAll(files)
	if err == nil {
		return
	}
	if err := k.end(&isolation.EndBox{Key: req.Spec.Key, RemoveWork: !req.Spec.Resume}); err != nil {
		k.cfg.Log.Printf("cannot end box %s, whose boxd is gone: %v", req.Spec.Key, err)
	}
}

// answerAdopt connects to PID 1 of a living box again.
func (k *keeper) answerAdopt(req *isolation.Adopt) (isolation.KeeperReply, []int) {
	launched, files, err := k.adopt(req.Key)
	if err != nil {
		return isolation.NewStepError(isolation.StepSetup, req.Key, err), nil
	}
	return launched, files
}

// answerChangeMount changes a mount of a live box.
func (k *keeper) answerChangeMount(ctx context.Context, req *isolation.ChangeMount) isolation.KeeperReply {
	mounted, err := k.changeMount(ctx, req)
	if err != nil {
		return isolation.NewStepError(isolation.StepMount, req.Mount.Target, err)
	}
	return mounted
}

// answerChangeSnapshots changes or lists the snapshots of a box.
func (k *keeper) answerChangeSnapshots(ctx context.Context, req *isolation.ChangeSnapshots) isolation.KeeperReply {
	list, err := k.changeSnapshots(ctx, req)
	if err != nil {
		return isolation.NewStepError(isolation.StepWorkspace, err.Error(), err)
	}
	return list
}

// answerReadQuota returns how full the quota of a directory of the host is.
func (k *keeper) answerReadQuota(req *isolation.ReadQuota) isolation.KeeperReply {
	used, err := k.hostQuotas.Usage(req)
	if err != nil {
		return isolation.NewStepError(isolation.StepWorkspace, req.Source, err)
	}
	return used
}

// answerLookHost returns what can be enforced on this host.
func (k *keeper) answerLookHost() isolation.KeeperReply {
	host := k.groups.probe(k)
	k.work.Probe(host)
	host.Bounds = k.hostQuotas.Probe()
	return host
}
