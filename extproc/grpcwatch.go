package extproc

import (
	"bytes"
	"errors"
	"io"
	"strconv"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"keyway/domain"
	"keyway/envoy"
	"keyway/wire"
)

// watchStream is what Envoy says of a response before the first message.
type watchStream struct {
	decision domain.Decision
	// known is false for an answer to a request that was never admitted.
	known bool
	notes string
}

// watchDoor is one response that comes by over ext_proc.
type watchDoor struct {
	server *Server
	stream extprocv3.ExternalProcessor_ProcessServer
	// w is nil until the head has come, and for a request that was never admitted.
	w     *watch
	pulse *pulse
}

// processWatch sees one response pass. The error that ends the stream says
// nothing about how the response ended: what was seen before does, and the
// deferred exit settles by it.
func (s *Server) processWatch(stream extprocv3.ExternalProcessor_ProcessServer, ws watchStream) error {
	s.watches.Add(1)
	defer s.watches.Done()
	d := &watchDoor{server: s, stream: stream}
	d.pulse = newPulse(d, ws.decision)
	defer d.close()
	for {
		req, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		start := time.Now()
		finished, err := d.message(req, ws)
		s.metrics.addedWatch.Observe(time.Since(start).Seconds())
		if err != nil {
			return err
		}
		if finished {
			// The client has its answer; now the books.
			d.w.end()
		}
	}
}

// message answers one message of Envoy's; finished says that it was the last of
// a watched answer.
func (d *watchDoor) message(req *extprocv3.ProcessingRequest, ws watchStream) (finished bool, err error) {
	d.pulse.mu.Lock()
	defer d.pulse.mu.Unlock()
	if d.pulse.stopped {
		return false, nil // The pulse has ended the stream; this was on its way.
	}
	err = d.answer(req, ws)
	return d.w != nil && d.w.finished, err
}

func (d *watchDoor) answer(req *extprocv3.ProcessingRequest, ws watchStream) error {
	switch msg := req.GetRequest().(type) {
	case *extprocv3.ProcessingRequest_ResponseHeaders:
		var resp *extprocv3.ProcessingResponse
		d.w, resp = d.server.responseHead(ws, req.GetAttributes(), msg.ResponseHeaders)
		if d.w != nil && d.w.watcher != nil {
			d.server.ends.expect(ws.decision.RequestID)
			d.pulse.start()
		}
		return d.stream.Send(resp)
	case *extprocv3.ProcessingRequest_ResponseBody:
		return d.body(msg.ResponseBody)
	case *extprocv3.ProcessingRequest_ResponseTrailers:
		return d.trailers()
	default:
		return d.stream.Send(&extprocv3.ProcessingResponse{})
	}
}

// close ends the watch, however the stream ended.
func (d *watchDoor) close() {
	d.pulse.mu.Lock()
	defer d.pulse.mu.Unlock()
	d.pulse.stop()
	if d.w != nil {
		d.w.end()
		d.server.ends.forget(d.w.decision.RequestID)
	}
}

// beat implements answering. Envoy takes bytes of ours only once it has given
// some of the upstream's.
func (d *watchDoor) beat() bool {
	if d.w.firstByte.IsZero() || !d.w.readable() || !d.w.watcher.AtBoundary() {
		return false
	}
	// An error means that the stream is over, which the handler hears as well.
	if d.stream.Send(bodyChunk(wire.Heartbeat(d.w.decision.API), false)) != nil {
		return false
	}
	d.server.metrics.heartbeats.Inc()
	return true
}

// idle implements answering: the client gets an error event, or, where none can
// stand, a broken answer. Either closes the way to the upstream.
func (d *watchDoor) idle() {
	d.pulse.stop()
	d.server.metrics.idleEnds.Inc()
	last := d.w.abort(errIdle)
	resp := bodyChunk(last, true)
	if d.w.firstByte.IsZero() || !d.w.isStream() || d.w.compressed() {
		resp = immediate(d.w.decision, errIdle)
	}
	if err := d.stream.Send(resp); err != nil {
		return // The stream is over; its handler settles.
	}
	d.w.end()
}

func (s *Server) responseHead(ws watchStream, attributes map[string]*structpb.Struct, h *extprocv3.HttpHeaders) (*watch, *extprocv3.ProcessingResponse) {
	if !ws.known {
		return nil, headResponse(watchPlan{})
	}
	headers := headerMap(h.GetHeaders())
	a := answer{headers: headers, notes: ws.notes}
	a.ended = h.GetEndOfStream() || a.header("content-length") == "0"
	// An unreadable status is an Envoy fault; 0 then counts as no success.
	a.status, _ = strconv.Atoi(a.header(":status"))
	for _, fields := range attributes {
		if v, ok := fields.GetFields()[envoy.AttributeAttempts]; ok {
			a.attempts = int(v.GetNumberValue())
		}
		if v, ok := fields.GetFields()[envoy.AttributeResponseCode]; ok {
			a.fromUpstream = v.GetStringValue() == detailsViaUpstream
			a.unanswered = strings.HasPrefix(v.GetStringValue(), detailsUnanswered)
		}
	}
	w, plan := s.begin(ws.decision, a)
	if plan.replace != nil {
		return w, immediate(ws.decision, plan.replace)
	}
	resp := headResponse(plan)
	switch {
	case w.settled:
		resp.DynamicMetadata = seen
	case plan.unread:
		// It goes with the request, to whichever replica gets the entries of it.
		resp.DynamicMetadata = unreadNote(w.upstreamRequestID())
	}
	return w, resp
}

// seen tells Envoy that the end of this answer is known here, so that it writes
// no entry for it. Whoever leaves from now on had the whole answer.
var seen = &structpb.Struct{Fields: map[string]*structpb.Value{
	envoy.WatchNamespace: structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{
		envoy.MetadataSeen: structpb.NewBoolValue(true),
	}}),
}}

func headResponse(p watchPlan) *extprocv3.ProcessingResponse {
	resp := &extprocv3.ProcessingResponse{
		Response: &extprocv3.ProcessingResponse_ResponseHeaders{ResponseHeaders: &extprocv3.HeadersResponse{
			Response: &extprocv3.CommonResponse{HeaderMutation: mutation(p.set, p.remove)},
		}},
	}
	if p.body {
		resp.ModeOverride = &extprocfilterv3.ProcessingMode{
			ResponseHeaderMode:  extprocfilterv3.ProcessingMode_SEND,
			ResponseBodyMode:    extprocfilterv3.ProcessingMode_FULL_DUPLEX_STREAMED,
			ResponseTrailerMode: extprocfilterv3.ProcessingMode_SEND,
		}
	}
	return resp
}

func (d *watchDoor) body(b *extprocv3.HttpBody) error {
	w := d.w
	if w == nil || w.watcher == nil {
		return d.stream.Send(bodyChunk(b.GetBody(), b.GetEndOfStream()))
	}
	out := w.chunk(b.GetBody())
	if !b.GetEndOfStream() {
		err := d.stream.Send(bodyChunk(out, false))
		d.pulse.passed()
		return err
	}
	d.pulse.stop()
	// The last bytes may lie in the watcher's buffer, which finish uses again.
	out = bytes.Clone(out)
	last := bodyChunk(append(out, w.finish()...), true)
	last.DynamicMetadata = seen
	return d.stream.Send(last)
}

func (d *watchDoor) trailers() error {
	d.pulse.stop()
	if d.w != nil && d.w.watcher != nil {
		if tail := d.w.finish(); len(tail) > 0 {
			if err := d.stream.Send(bodyChunk(tail, false)); err != nil {
				return err
			}
		}
	}
	resp := &extprocv3.ProcessingResponse{
		Response: &extprocv3.ProcessingResponse_ResponseTrailers{ResponseTrailers: &extprocv3.TrailersResponse{}},
	}
	if d.w != nil {
		resp.DynamicMetadata = seen
	}
	return d.stream.Send(resp)
}

func bodyChunk(body []byte, end bool) *extprocv3.ProcessingResponse {
	return &extprocv3.ProcessingResponse{
		Response: &extprocv3.ProcessingResponse_ResponseBody{ResponseBody: &extprocv3.BodyResponse{Response: &extprocv3.CommonResponse{
			BodyMutation: &extprocv3.BodyMutation{Mutation: &extprocv3.BodyMutation_StreamedResponse{
				StreamedResponse: &extprocv3.StreamedBodyResponse{Body: body, EndOfStream: end},
			}},
		}}},
	}
}

// headerMap reads Envoy's header list; names come in lower case.
func headerMap(h *corev3.HeaderMap) map[string][]string {
	out := make(map[string][]string, len(h.GetHeaders()))
	for _, v := range h.GetHeaders() {
		value := v.GetValue()
		if raw := v.GetRawValue(); len(raw) > 0 {
			value = string(raw)
		}
		out[v.GetKey()] = append(out[v.GetKey()], value)
	}
	return out
}

func mutation(set []wire.Header, remove []string) *extprocv3.HeaderMutation {
	return &extprocv3.HeaderMutation{SetHeaders: headerOptions(set), RemoveHeaders: remove}
}

func headerOptions(set []wire.Header) []*corev3.HeaderValueOption {
	out := make([]*corev3.HeaderValueOption, len(set))
	for i, h := range set {
		out[i] = &corev3.HeaderValueOption{
			Header:       &corev3.HeaderValue{Key: h.Name, RawValue: []byte(h.Value)},
			AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
		}
	}
	return out
}

// immediate answers in place of the upstream, in the client's dialect.
func immediate(d domain.Decision, err error) *extprocv3.ProcessingResponse {
	e := domain.AsError(err)
	dialect := d.API.Dialect()
	headers := append(wire.ErrorHeaders(dialect, e), wire.RequestIDHeaders(dialect, d.RequestID)...)
	return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ImmediateResponse{ImmediateResponse: &extprocv3.ImmediateResponse{
		Status:  &typev3.HttpStatus{Code: typev3.StatusCode(wire.Status(dialect, e.Code))},
		Headers: &extprocv3.HeaderMutation{SetHeaders: headerOptions(headers)},
		Body:    wire.ErrorBody(dialect, e, d.RequestID),
		Details: envoy.DetailsPrefix + string(e.Code),
	}}}
}
