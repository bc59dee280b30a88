// SPDX-License-Identifier: Apache-2.0

package isolation

// Types of the messages between boxd and keeper. They are never renumbered: see Greeting.
const (
	msgHello uint8 = iota + 1
	msgLaunch
	msgEndBox
	msgCheckHost
	msgLaunched
	msgDone
	msgChecked
	msgFailed
	msgSetLimits
	msgLookHost
	msgHost
	msgLeave
	msgQuit
	msgListBoxes
	msgListed
	msgAdopt
	msgSetHostname
	msgReclaim
	msgChangeMount
	msgMounted
	msgChangeSpace
	msgNetworkWords // used before version 22; no message has this type any more
	msgReadQuota
	msgQuotaUse
	msgKeepTree
	msgRemoveTree
	msgSetOwnerLimits
	msgSetNetwork
	msgPinAddresses
	msgReadTraffic
	msgTraffic
	msgReadRefusals
	msgRefusals
	msgOpenSockets
	msgSocketsOpened
	msgDial
	msgDialLoopback
	msgDialed
	msgWhyEnded
	msgEnded
	msgChangeSnapshots
	msgSnapshots
	msgAttachNetwork // this and the next never come from boxd
	msgAttached
	msgDetachNetwork
	msgAdoptNetworks
	msgCheckNetwork
)

// EncodeKeeperRequest returns the bytes of a request and its number.
func EncodeKeeperRequest(number uint32, m KeeperRequest) []byte {
	return encodeNumbered(m.requestKind(), number, m.fields)
}

// DecodeKeeperRequest decodes a message from boxd.
func DecodeKeeperRequest(b []byte) (number uint32, m KeeperRequest, err error) {
	return decodeNumbered(b, newKeeperRequest)
}

// DecodeNetworkRequest decodes a message from the keeper to boxnet.
func DecodeNetworkRequest(b []byte) (number uint32, m KeeperRequest, err error) {
	return decodeNumbered(b, newNetworkRequest)
}

// EncodeKeeperReply returns the bytes of the reply to the request with this number.
func EncodeKeeperReply(number uint32, m KeeperReply) []byte {
	return encodeNumbered(m.replyKind(), number, m.fields)
}

// DecodeKeeperReply decodes a message from the keeper.
func DecodeKeeperReply(b []byte) (number uint32, m KeeperReply, err error) {
	return decodeNumbered(b, newKeeperReply)
}

func encodeNumbered(kind uint8, number uint32, fields func(*codec)) []byte {
	c := writeMessage(kind)
	if kind != msgHello {
		c.u32(&number)
	}
	fields(c)
	return c.b
}

// decodeNumbered decodes a message of a type for which empty returns a value; for others it
// returns nil.
func decodeNumbered[M interface {
	comparable
	fields(c *codec)
}](b []byte, empty func(kind uint8) M) (number uint32, m M, err error) {
	var none M
	c, kind := readMessage(b)
	if m = empty(kind); m == none {
		return 0, none, ErrMalformed
	}
	if kind != msgHello {
		c.u32(&number)
	}
	m.fields(c)
	if err := c.done(); err != nil {
		return 0, none, err
	}
	return number, m, nil
}

// newKeeperRequest returns an empty request of this type, nil if there is none.
func newKeeperRequest(kind uint8) KeeperRequest { return ofKind(keeperRequestTypes(), kind) }

// newNetworkRequest does that for requests to boxnet.
func newNetworkRequest(kind uint8) KeeperRequest { return ofKind(networkRequestTypes(), kind) }

func ofKind(types []KeeperRequest, kind uint8) KeeperRequest {
	for _, m := range types {
		if m.requestKind() == kind {
			return m
		}
	}
	return nil
}

// newKeeperReply returns an empty reply of this type, nil if there is none.
func newKeeperReply(kind uint8) KeeperReply {
	for _, m := range keeperReplyTypes() {
		if m.replyKind() == kind {
			return m
		}
	}
	return nil
}

// keeperRequestTypes returns an empty request of each type.
func keeperRequestTypes() []KeeperRequest {
	return []KeeperRequest{
		&Hello{}, &Launch{}, &Adopt{}, &EndBox{}, &WhyEnded{}, &ListBoxes{}, &SetLimits{}, &SetOwnerLimits{}, &SetHostname{}, &Reclaim{}, &ChangeMount{},
		&ChangeSpace{}, &ChangeSnapshots{}, &KeepTree{}, &RemoveTree{}, &ReadQuota{}, &SetNetwork{}, &PinAddresses{}, &ReadTraffic{}, &ReadRefusals{},
		&OpenSockets{}, &Dial{}, &DialLoopback{}, &LookHost{}, &CheckHost{}, &Leave{}, &Quit{},
	}
}

// networkRequestTypes returns an empty request to boxnet of each type.
func networkRequestTypes() []KeeperRequest {
	return []KeeperRequest{
		&AttachNetwork{}, &DetachNetwork{}, &AdoptNetworks{}, &CheckNetwork{}, &SetNetwork{}, &PinAddresses{}, &ReadTraffic{}, &ReadRefusals{},
		&OpenSockets{}, &Dial{}, &DialLoopback{},
	}
}

// keeperReplyTypes returns an empty reply of each type.
func keeperReplyTypes() []KeeperReply {
	return []KeeperReply{
		&Greeting{}, &StepError{}, &Done{}, &Launched{}, &Listed{}, &Ended{}, &Mounted{}, &Disk{}, &Host{}, &Checked{}, &Traffic{}, &Refusals{},
		&SocketsOpened{}, &Dialed{}, &Snapshots{}, &Attached{},
	}
}
