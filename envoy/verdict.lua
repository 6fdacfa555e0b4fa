-- Marks an upstream answer that the next channel should replace, and notes
-- what this attempt answered. Synchronous, so it may take part in the response.
local channel, namespace, key, mark = "CHANNEL", "NAMESPACE", "ATTEMPTS", "HEADER"
local classes = {
  ["401"] = "auth", ["402"] = "quota", ["403"] = "auth", ["429"] = "rate", ["503"] = "overload", ["529"] = "overload",
}
-- Statuses whose body tells money, a rate and a fault of the client apart, or
-- how long to wait.
local telling = { ["400"] = true, ["402"] = true, ["403"] = true, ["429"] = true, ["503"] = true, ["529"] = true }
-- Some providers say "out of money" with 400: only the body tells.
local money = {
  "insufficient_quota", "billing_error", "credit_balance_exhausted", "spend_limit_", "usage_limit_exceeded", "Arrearage",
}
-- Bounds of what is read of a body, and of what is noted of it and of headers.
local largest, longest_body, longest_head = 32768, 1024, 1024

-- The headers that may say how long to wait, a line each.
local function waits(headers)
  local lines, room = {}, longest_head
  for name, value in pairs(headers) do
    if name:find("retry-after", 1, true) or name:find("ratelimit", 1, true) then
      local line = name .. ": " .. value .. "\n"
      room = room - #line
      if room >= 0 then lines[#lines + 1] = line end
    end
  end
  return table.concat(lines)
end

-- The body of an error, where it is short and its length is known.
local function text_of(handle, headers)
  local length = tonumber(headers:get("content-length") or "")
  if length == nil or length == 0 or length > largest then return "" end
  local body = handle:body()
  if body == nil then return "" end
  return body:getBytes(0, body:length())
end

local function out_of_money(text)
  for _, word in ipairs(money) do
    if text:find(word, 1, true) then return true end
  end
  return false
end

-- What is wrong with the channel; nil where the request is. Every other 5xx, of
-- which edges have their own, is the server's fault, and so is a redirect: nobody
-- follows one, least of all a client with its key.
local function class_of(status, text)
  if classes[status] then return classes[status] end
  if status:find("^[35]") then return "server" end
  if status == "400" and out_of_money(text) then return "quota" end
end

-- Go reads what is noted, and judges by it what is wrong with the channel.
local function note(handle, status, detail)
  local meta = handle:streamInfo():dynamicMetadata()
  local seen = meta:get(namespace)
  local before = seen and seen[key] or ""
  if detail ~= "\n" then detail = "," .. handle:base64Escape(detail) else detail = "" end
  local at = string.format("%.0f", handle:timestamp(EnvoyTimestampResolution.MILLISECOND))
  meta:set(namespace, key, before .. channel .. "=" .. status .. "@" .. at .. detail .. ";")
end

local function verdict(handle)
  local headers = handle:headers()
  local status = headers:get(":status")
  headers:remove(mark)
  if status:sub(1, 1) == "2" then return end
  headers:remove("x-envoy-ratelimited") -- Envoy would not go on, whoever said it
  local final = headers:get("x-should-retry") == "false"
  local head, text = waits(headers), ""
  if telling[status] then text = text_of(handle, headers) end
  note(handle, status, head .. "\n" .. text:sub(1, longest_body))
  if final then return end
  local class = class_of(status, text)
  -- The header object is dead once the body was waited for.
  if class ~= nil then handle:headers():replace(mark, class) end
end

function envoy_on_response(handle)
  local ok, problem = pcall(verdict, handle)
  if not ok then handle:logErr("keyway verdict " .. channel .. ": " .. tostring(problem)) end
end
