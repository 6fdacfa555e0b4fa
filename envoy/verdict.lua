-- Marks an upstream answer that the next channel should replace, and notes
-- what this attempt answered. Synchronous, so it may take part in the response.
local channel, namespace, key, mark = "CHANNEL", "NAMESPACE", "ATTEMPTS", "HEADER"
local classes = {
  ["401"] = "auth", ["403"] = "auth", ["429"] = "rate",
  ["500"] = "server", ["502"] = "server", ["503"] = "overload", ["504"] = "server", ["529"] = "overload",
}
local money = { "insufficient_quota", "billing_error", "credit_balance_exhausted", "spend_limit_" }
local largest = 32768

local function note(handle, status)
  local meta = handle:streamInfo():dynamicMetadata()
  local seen = meta:get(namespace)
  local before = seen and seen[key] or ""
  meta:set(namespace, key, before .. channel .. "=" .. status .. ";")
end

-- Some providers say "out of money" with 400 or 402: only the body tells.
local function out_of_money(handle, headers)
  local length = tonumber(headers:get("content-length") or "")
  if length == nil or length == 0 or length > largest then return false end
  local body = handle:body()
  if body == nil then return false end
  local text = body:getBytes(0, body:length())
  for _, word in ipairs(money) do
    if text:find(word, 1, true) then return true end
  end
  return false
end

local function verdict(handle)
  local headers = handle:headers()
  local status = headers:get(":status")
  headers:remove(mark)
  if status:sub(1, 1) == "2" then return end
  note(handle, status)
  if headers:get("x-should-retry") == "false" then return end
  local class = classes[status]
  if class == nil and (status == "400" or status == "402") and out_of_money(handle, headers) then
    class = "quota"
  end
  -- The header object is dead once the body was waited for.
  if class ~= nil then handle:headers():replace(mark, class) end
end

function envoy_on_response(handle)
  local ok, problem = pcall(verdict, handle)
  if not ok then handle:logErr("keyway verdict " .. channel .. ": " .. tostring(problem)) end
end
