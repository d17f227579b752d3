package serving

import (
	"context"
	"maps"
	"net"
	"slices"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/peer"
)

// Bytes in flight are those of messages that were handed to gRPC and that it has not written yet,
// because the client has not opened its windows. gRPC keeps a message as buffers and frees each as soon
// as its last byte is written, or its stream is reset: so a large message is handed over as buffers of
// 64 KiB, and each counts until then. What a connection still holds when it is closed is freed with it.
//
// A connection is charged for each of its streams; in all, a frame counts once, however many streams
// send it, because they share its bytes. A first answer waits, before it is made, until its connection
// has less in flight than it may, and less than a quarter of what is left of the bound in all; its
// stream sends heartbeats meanwhile. So each connection that takes all it gets and reads nothing leaves
// four fifths of what it found: a client that has taken what it was sent does not wait for a few that
// have not. Changes never wait: a stream that has not sent the message before has none under way. So
// the bounds are passed by no more than the first answers that are made at the same time.
//
// A message that was composed is a flight for each of its parts, which count as Frames do.
//
// Not counted are messages of up to 1 KiB, of which gRPC takes no more than 64 KiB for a stream.
//
// A connection that holds bytes, or on which a send waits, is closed if for -stall-timeout no message that
// is counted makes progress on any of its streams: ending a stream would not free what gRPC has of it. Where
// answers wait and three quarters of what all may have are in flight, two seconds are enough: a client that has
// stalled for so long gives way to a client that comes. A client that reads, however slowly, makes progress.
//
// No lock is held while another is taken, or while calling gRPC.

const (
	maxUncounted  = 1 << 10 // bytes: gRPC does not report that it frees messages of so many, or fewer
	flightBuffer  = 64 << 10
	pressureStall = 2 * time.Second
	hurryPause    = pressureStall / 10
	roomPause     = 10 * time.Second // after which a stream that waits for room looks again, whatever rings
)

// flight is a plain Frame under way to one client.
type flight struct {
	connection *connection
	frame      *Frame
	left       int // bytes; guarded by connection.mu
}

// formation is a message that was composed, under way: a flight, or a Frame that does not count, for each part.
type formation []encoded

func (f formation) buffers() mem.BufferSlice {
	all := make(mem.BufferSlice, 0, len(f))
	for _, part := range f {
		all = append(all, part.buffers()...)
	}
	return all
}

// launch counts frames that are about to be sent on the connection, and replaces those that it counts by flights.
func (c *connection) launch(messages []encoded) {
	var charged int64
	c.mu.Lock()
	if len(c.flights) == 0 && c.sends.Load() == 0 {
		c.progress.Store(time.Now().UnixNano()) // what begins to wait now has not waited before
	}

	for i, m := range messages {
		frame := m.(*Frame)
		if frame.parts == nil {
			messages[i] = c.count(frame, &charged)
			continue
		}
		parts := make(formation, len(frame.parts))
		for j, part := range frame.parts {
			parts[j] = c.count(part, &charged)
		}
		messages[i] = parts
	}
	c.mu.Unlock()

	c.admission.bytes.Add(charged)
}

// count returns the flight of a plain Frame, or the Frame if it does not count. It adds to charged the bytes that are
// on no other connection. It needs c.mu.
func (c *connection) count(frame *Frame, charged *int64) encoded {
	if c.closed || !frame.counts() {
		return frame
	}

	fl := &flight{c, frame, len(frame.bytes)}
	if c.flights == nil {
		c.flights = map[*flight]struct{}{}
	}
	c.flights[fl] = struct{}{}
	c.bytes += int64(fl.left)
	if frame.flights.Add(1) == 1 {
		*charged += int64(fl.left)
	}
	return fl
}

// buffers returns the frame in parts, each of which gRPC frees when it is written.
func (f *flight) buffers() mem.BufferSlice {
	n := max(1, len(f.frame.bytes)/flightBuffer)
	parts, all := make([][]byte, n), make(mem.BufferSlice, n)
	for i := range n {
		end := (i + 1) * flightBuffer
		if i == n-1 {
			end = len(f.frame.bytes) // no part is too small to be counted
		}
		parts[i] = f.frame.bytes[i*flightBuffer : end : end]
		all[i] = mem.NewBuffer(&parts[i], f)
	}
	return all
}

// Get is not called: a flight is a mem.BufferPool for the sake of Put.
func (f *flight) Get(int) *[]byte { panic("BUG: a flight lends no buffers") }

// Put is called when gRPC has freed a part.
func (f *flight) Put(part *[]byte) { f.connection.landed(f, len(*part)) }

// landed takes n bytes of a flight off the counts.
func (c *connection) landed(flight *flight, n int) {
	c.mu.Lock()
	if _, counted := c.flights[flight]; !counted {
		c.mu.Unlock()
		return
	}

	c.progress.Store(time.Now().UnixNano())
	c.bytes -= int64(n)
	freed := 0
	if flight.left -= n; flight.left == 0 {
		delete(c.flights, flight)
		if flight.frame.flights.Add(-1) == 0 {
			freed = len(flight.frame.bytes)
		}
	}
	c.mu.Unlock()

	c.admission.freed(freed)
	c.wake()
}

// wake rings for what waits for room on the connection, if there is some.
func (c *connection) wake() {
	var wake map[*alarm]struct{}
	c.mu.Lock()
	if c.hasRoom() {
		wake, c.waiting = c.waiting, nil
	}
	c.mu.Unlock()
	ringAll(wake)
}

// hasRoom reports whether the connection has less in flight than it may, and than a quarter of what is
// left in all. It needs c.mu.
func (c *connection) hasRoom() bool {
	a := c.admission
	return c.bytes == 0 || c.bytes < min(a.config.ConnectionBytes, (a.config.Bytes-a.bytes.Load())/4)
}

// abandon takes what was launched and not handed to gRPC off the counts.
func (c *connection) abandon(messages []encoded) {
	for _, m := range messages {
		switch m := m.(type) {
		case *flight:
			c.landed(m, m.left)
		case formation:
			c.abandon(m)
		}
	}
}

func ringAll(alarms map[*alarm]struct{}) {
	for a := range alarms {
		a.Ring()
	}
}

func (a *admission) freed(n int) {
	if n == 0 || a.bytes.Add(-int64(n)) >= a.config.Bytes {
		return
	}
	a.mu.Lock()
	wake := a.waiting
	a.waiting = nil
	a.mu.Unlock()
	ringAll(wake)
}

// room reports whether a first answer may be made now. If not, the bell rings when it should be asked
// again: once the connection itself has taken something, or, if it has nothing in flight, others have.
func (c *connection) room(bell *alarm) bool {
	c.mu.Lock()
	has := c.hasRoom()
	if !has {
		add(&c.waiting, bell)
	}
	c.mu.Unlock()
	if has && c.admission.room(bell) {
		return true
	}
	c.admission.hurry()
	return false
}

func (a *admission) room(bell *alarm) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.bytes.Load() < a.config.Bytes {
		return true
	}
	add(&a.waiting, bell)
	return false
}

// pressed reports whether so much is in flight that connections which stall should give way soon.
func (a *admission) pressed() bool { return a.bytes.Load() >= a.config.Bytes/4*3 }

func add(to *map[*alarm]struct{}, bell *alarm) {
	if *to == nil {
		*to = map[*alarm]struct{}{}
	}
	(*to)[bell] = struct{}{}
}

// forget lets a bell ring no more.
func (c *connection) forget(bell *alarm) {
	c.mu.Lock()
	delete(c.waiting, bell)
	c.mu.Unlock()
	c.admission.mu.Lock()
	delete(c.admission.waiting, bell)
	c.admission.mu.Unlock()
}

// sending notes that a send has begun; sent that it is through.
func (c *connection) sending(now time.Time) {
	c.sends.Add(1)
	if c.watched.Load() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()

	if c.closed || c.watched.Swap(true) {
		return
	}
	c.progress.Store(now.UnixNano())
	patience := c.patience()
	if c.stall == nil {
		c.stall = time.AfterFunc(patience, c.stalled)
	} else {
		c.stall.Reset(patience)
	}
}

func (c *connection) sent(begun time.Time) {
	if now := time.Now(); now.Sub(begun) > time.Second { // it has waited for the client
		c.progress.Store(now.UnixNano())
	}
	c.sends.Add(-1)
}

// patience returns how long the connection may make no progress.
func (c *connection) patience() time.Duration {
	a := c.admission
	if a.pressed() {
		return min(pressureStall, a.config.Stall)
	}
	return a.config.Stall
}

// timeLeft returns how long the connection may still make no progress.
func (c *connection) timeLeft() time.Duration {
	return max(0, time.Until(time.Unix(0, c.progress.Load()).Add(c.patience())))
}

// stalled closes the connection if it has made no progress for as long as it may, and else looks again
// when it should.
func (c *connection) stalled() {
	c.mu.Lock()
	c.watched.Store(false) // a send from now on sets the timer, or is seen here
	if c.closed || c.sends.Load() == 0 && len(c.flights) == 0 {
		c.mu.Unlock()
		return
	}

	if left := c.timeLeft(); left > 0 {
		c.watched.Store(true)
		c.stall.Reset(left)
		c.mu.Unlock()
		return
	}
	c.mu.Unlock()

	c.admission.metrics.stalled.Inc()
	if c.conn != nil {
		_ = c.conn.Close() // gRPC notices, and ends all its streams
	}
}

// hurry sets the timer of every connection on which something waits anew if little is left in all: patience has
// become shorter than when it was set. It does so at most once in hurryPause.
func (a *admission) hurry() {
	now := time.Now()
	a.mu.Lock()
	if !a.pressed() || now.Sub(a.hurried) <= hurryPause {
		a.mu.Unlock()
		return
	}
	a.hurried = now
	all := slices.Collect(maps.Keys(a.open))
	a.mu.Unlock()

	for _, c := range all {
		c.mu.Lock()
		if c.watched.Load() {
			c.stall.Reset(c.timeLeft())
		}
		c.mu.Unlock()
	}
}

// end takes whatever the connection holds off the counts: it is closed.
func (c *connection) end() {
	c.mu.Lock()
	c.closed = true
	flights := c.flights
	c.flights, c.bytes = nil, 0
	if c.stall != nil {
		c.stall.Stop()
	}
	c.mu.Unlock()

	freed := 0
	for f := range flights {
		if f.frame.flights.Add(-1) == 0 {
			freed += len(f.frame.bytes)
		}
	}
	c.admission.freed(freed)
}

// onConn is what is known of a connection after its handshake: the net.Conn that it is on.
type onConn struct{ net.Conn }

// AuthType is what gRPC calls it.
func (onConn) AuthType() string { return "none" }

// keeper is the transport credentials of a server whose listener does what there is to do. A server calls no more of
// them than ServerHandshake.
type keeper struct {
	credentials.TransportCredentials
}

// ServerHandshake gives gRPC the TCP connection itself: of another type gRPC would keep a buffer of 32
// KiB to read into.
func (keeper) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	if counted, is := conn.(*accepted); is {
		return counted.Conn, onConn{conn}, nil
	}
	return conn, onConn{conn}, nil
}

// connOf returns the net.Conn of a connection, nil if it is not known.
func connOf(ctx context.Context) net.Conn {
	if p, ok := peer.FromContext(ctx); ok {
		if h, is := p.AuthInfo.(onConn); is {
			return h.Conn
		}
	}
	return nil
}
