-- Turns a client's request into an attempt on one channel, in Envoy itself.
-- The credentials stand in the headers already; the one that the dialect does
-- not use goes with everything else that no provider may see.
local source, field = NAMESPACE, NATIVE
local authority, base = AUTHORITY, BASE
local credentials = { openai = "authorization", anthropic = "x-api-key" }
local kept, families, own, set, version = KEPT, FAMILIES, PERCHANNEL, SET, VERSION

-- The decision is lines of text: dialect, path, length of the body, and per
-- patch "attempt channel offset delete text" (Native in package envoy).
local function decision(handle)
  local meta = handle:streamInfo():dynamicMetadata():get(source)
  local text = meta and meta[field]
  if type(text) ~= "string" then error("no decision") end
  local dialect, path, length, rest = text:match("^(%l+)\n(/[^\n]*)\n(%d+)\n(.*)$")
  if credentials[dialect] == nil then error("unreadable decision") end
  return dialect, path, tonumber(length), rest
end

local function keeps(name, credential)
  if name == credential or kept[name] or name:sub(1, 1) == ":" then return true end
  for _, family in ipairs(families) do
    if name:sub(1, #family) == family then return true end
  end
  return false
end

-- One header map serves all attempts of a request, so every attempt removes and
-- sets everything.
local function headers(handle, dialect, path, length)
  local map, gone = handle:headers(), {}
  for name in pairs(map) do
    if not keeps(name, credentials[dialect]) then gone[#gone + 1] = name end
  end
  for _, name in ipairs(gone) do map:remove(name) end
  for _, name in ipairs(own) do map:remove(name) end
  map:replace(":path", base .. path)
  map:replace(":authority", authority)
  map:replace("accept-encoding", "identity")
  map:replace("content-length", string.format("%.0f", length))
  if dialect ~= "anthropic" then
    for name, value in pairs(set) do map:replace(name, value) end
    return
  end
  if map:get("anthropic-version") == nil then map:replace("anthropic-version", version) end
  local betas = map:get("anthropic-beta") -- several lines are read as one list
  if betas ~= nil then map:replace("anthropic-beta", betas) end
end

local function patch(handle, channel, attempt, length, rest)
  local edits = {}
  for number, name, offset, delete, text in rest:gmatch("(%d+) ([^ \n]+) (%d+) (%d+) ([^\n]*)\n") do
    if number == attempt and name == channel then edits[#edits + 1] = { tonumber(offset), tonumber(delete), text } end
  end
  if #edits == 0 then return end -- without a call of body() nothing is buffered
  local body = handle:body()
  if body == nil or body:length() ~= length then error("the body is not of the decision's length") end
  local out, at = {}, 0
  for _, edit in ipairs(edits) do
    local offset, delete = edit[1], edit[2]
    if offset < at or offset + delete > length then error("a patch lies outside of the body") end
    if offset > at then out[#out + 1] = body:getBytes(at, offset - at) end
    out[#out + 1] = edit[3]
    at = offset + delete
  end
  if at < length then out[#out + 1] = body:getBytes(at, length - at) end
  local size = body:setBytes(table.concat(out))
  handle:headers():replace("content-length", string.format("%.0f", size))
end

local function prepare(handle, channel)
  local dialect, path, length, rest = decision(handle)
  local attempt = handle:headers():get("x-envoy-attempt-count") or error("no attempt count")
  headers(handle, dialect, path, length)
  patch(handle, channel, attempt, length, rest)
end

-- An error of a script lets the request pass as it is: with the client's path
-- and the provider's credential. So each ends here, in a final 503.
function envoy_on_request(handle)
  local ok, problem = pcall(prepare, handle, channel)
  if ok then return end
  handle:logErr("keyway egress " .. channel .. ": " .. tostring(problem))
  handle:respond({ [":status"] = "503" }, "")
end
