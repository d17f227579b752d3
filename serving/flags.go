package serving

import (
	"errors"
	"flag"
)

// Flags defines the flags that set c, with c's values as their defaults.
func (c *Config) Flags(fs *flag.FlagSet) {
	fs.DurationVar(&c.MaxStreamAge, "max-connection-age", c.MaxStreamAge,
		"after which a connection takes no new streams and a stream ends with OK, more or less by a "+
			"tenth, so that load spreads after a rollout; 0 for never")
	fs.DurationVar(&c.DrainWindow, "drain-window", c.DrainWindow,
		"time over which streams are closed on shutdown; the process ends "+
			"within a second more. It takes a millisecond for each stream, and no more than this")

	fs.Int64Var(&c.FrameBytes, "frame-cache-bytes", c.FrameBytes,
		"bound on the encoded messages that are kept to be shared by streams, in bytes")
	fs.Float64Var(&c.Admission.Rate, "admission-rate", c.Admission.Rate,
		"new streams a second, in the long run; more are refused and come back later. By default 1000 for each "+
			"processor")
	fs.IntVar(&c.Admission.Burst, "admission-burst", c.Admission.Burst, "new streams that may come at once")
	fs.Float64Var(&c.Admission.ConnectionRate, "admission-connection-rate", c.Admission.ConnectionRate,
		"new streams a second on one connection, in the long run. A proxy beside the server carries the "+
			"streams of many clients on few connections: raise all bounds of connections there. By default 100 "+
			"for each processor")

	fs.IntVar(&c.Admission.ConnectionBurst, "admission-connection-burst", c.Admission.ConnectionBurst,
		"new streams that may come at once on one connection")
	fs.IntVar(&c.Admission.Answers, "admission-answers", c.Admission.Answers,
		"first answers that are made at the same time. By default 4 for each processor")
	fs.IntVar(&c.Admission.Connections, "max-connections", c.Admission.Connections,
		"connections that may be open; more are closed at once. By default as many as fit a quarter of "+
			"GOMEMLIMIT at 64 KiB for each, or 10000 without one")
	fs.IntVar(&c.Admission.ConnectionStreams, "max-connection-streams", c.Admission.ConnectionStreams,
		"streams that may be open on one connection; more are refused")
	fs.IntVar(&c.Admission.Streams, "max-streams", c.Admission.Streams,
		"streams that may be open in all; more are refused. By default as many as fit half of GOMEMLIMIT "+
			"at 16 KiB for each, or 100000 without one")

	fs.Int64Var(&c.Admission.ConnectionBytes, "max-connection-bytes", c.Admission.ConnectionBytes,
		"bytes of messages that wait to be written on one connection; beyond it, or beyond a quarter of "+
			"what is left of -max-bytes, first answers wait, and heartbeats are sent")
	fs.Int64Var(&c.Admission.Bytes, "max-bytes", c.Admission.Bytes,
		"bytes of messages that wait to be written in all, where what streams share counts once. By "+
			"default an eighth of GOMEMLIMIT, or 50331648 without one")
	fs.DurationVar(&c.Admission.Stall, "stall-timeout", c.Admission.Stall,
		"how long a connection on which messages wait may make no progress at all before it is closed; "+
			"2s where answers wait and three quarters of -max-bytes are taken")
	fs.DurationVar(&c.Admission.Request, "request-timeout", c.Admission.Request,
		"how long the request of a stream may take to arrive before the stream is ended")
}

// Validate returns what in c makes no sense, by the names of the flags.
func (c *Config) Validate() error {
	for _, rule := range []struct {
		wrong   bool
		message string
	}{
		{c.MaxStreamAge < 0, "-max-connection-age must not be negative"},
		{c.DrainWindow < 0, "-drain-window must not be negative"},
		{c.FrameBytes <= 0, "-frame-cache-bytes must be greater than 0"},
		{c.Admission.Rate <= 0, "-admission-rate must be greater than 0"},
		{c.Admission.Burst <= 0, "-admission-burst must be greater than 0"},
		{c.Admission.ConnectionRate <= 0, "-admission-connection-rate must be greater than 0"},
		{c.Admission.ConnectionBurst <= 0, "-admission-connection-burst must be greater than 0"},
		{c.Admission.Answers <= 0, "-admission-answers must be greater than 0"},
		{c.Admission.Connections <= 0, "-max-connections must be greater than 0"},
		{
			c.Admission.ConnectionStreams <= 0 || c.Admission.ConnectionStreams > 1<<30,
			"-max-connection-streams must be greater than 0, and at most 1073741824",
		},
		{c.Admission.Streams <= 0, "-max-streams must be greater than 0"},
		{c.Admission.ConnectionBytes <= 0, "-max-connection-bytes must be greater than 0"},
		{c.Admission.Bytes <= 0, "-max-bytes must be greater than 0"},
		{c.Admission.Stall <= 0, "-stall-timeout must be greater than 0"},
		{c.Admission.Request <= 0, "-request-timeout must be greater than 0"},
	} {
		if rule.wrong {
			return errors.New(rule.message)
		}
	}
	return nil
}
